"""Measurements that take longer than tests; each is a command of the Makefile."""
