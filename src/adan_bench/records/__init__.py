"""What is on disk: runs, the environment they ran in, and statistics over them."""
