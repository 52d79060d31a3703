"""The update rule, one engine a file. Read `loop` first: the others do the same, faster."""
