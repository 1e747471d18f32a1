"""`oncemq shell`: messages by hand, at a prompt or from a pipe.

lines       what was typed: words, quotes, completion; knows neither brokers nor terminals
feed        a subscription whose messages are shown as they come
session     what the commands do
roles       the same for those who know a publisher and a subscriber as two programs
plain       lines from a pipe, text to a pipe
prompt      a terminal: history, completion, colours, messages above the prompt
"""
