"""Batches as functions of their position, and the data sets they are drawn from."""
