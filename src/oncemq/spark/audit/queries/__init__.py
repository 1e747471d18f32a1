"""The SQL queries of the audit. `{lines}` are all lines, `{periods}` the periods of epochs (periods.py),
`{acked_ranges}` the acked range of each subscription and era, and `{names}` the names of topics. auditor.py provides
these frames.

Faults that whole batches show are found from their ranges. Messages are only compared one by one (messages.py) to find
those that are missing or different. Puts and deliveries are joined once, by (broker, topic_id, offset).
"""
