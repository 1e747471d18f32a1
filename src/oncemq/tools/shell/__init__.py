"""`oncemq shell`: put and receive messages at a prompt or through a pipe.

lines       parsing and completion of lines; knows neither brokers nor terminals
display     where output goes
feed        shows the messages of a subscription as they arrive
session     the commands
roles       a publisher and a subscriber as two programs
plain       lines from a pipe, text to a pipe
prompt      a terminal: history, completion, colours, messages above the prompt
"""
