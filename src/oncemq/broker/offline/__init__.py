"""Tools for the journal of a stopped broker that need its recovery: check, cut, copy. The command line uses them.

It owns what a broker would find in a journal, and what of it can be kept. It must not know the command line.
"""
