"""Checkpoints that lose entries while messages keep coming: each run of a pipeline is exact, or fails loudly.

streams.py      a pipeline into each kind of target, and the ids that are in the target
damage.py       what happens to a checkpoint
campaign.py     rounds of runs and damage
"""
