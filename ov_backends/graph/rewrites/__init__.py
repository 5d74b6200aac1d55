"""Rewrites of an IR, one family a file; rewrite.py lists them."""
