"""Studies on real recordings, beside what a user would pick instead."""
