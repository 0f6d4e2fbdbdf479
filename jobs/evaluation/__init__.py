"""Evaluation: what a checkpoint knows, measured on real data (held-out text and benchmark families).

`suites` and `tasks` say what is measured, `requests` reads it, `scorer` asks the model, `metrics` derives every
number from the scorer's one table, `heldout` measures the training losses on text kept out of training, and `run`
puts them together for one checkpoint. Nothing here knows of Ray or of storage.
"""
