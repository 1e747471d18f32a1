"""Checkpoints that lose entries while messages keep coming: each run of a pipeline is exact, or fails loudly.

streams.py      a pipeline into each kind of target, and the ids that are in the target
model.py        the same with a model of Spark's driver, for many rounds
damage.py       what happens to a checkpoint
campaign.py     rounds of runs and damage
"""
