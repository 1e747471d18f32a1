"""Distribute tasks to a pool of threads. Several instances of this program, on several machines, share the tasks.

    python examples/workers.py oncemq://127.0.0.1:5554

A task whose worker fails or dies is redelivered to another one. After three deliveries it is dead-lettered. Each result
is put in one transaction with the ack of its task, so each task has exactly one result through all failures.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import oncemq


def work(task: oncemq.Task) -> None:
    try:
        with workers.handling(task), client.transaction() as transaction:
            transaction.put("squares", str(int(task.text) ** 2))
            transaction.ack(task)
    except ValueError as error:
        print(f"try {task.tries}: {error}")


with oncemq.connect(sys.argv[1] if len(sys.argv) > 1 else "memory:") as client:
    client.create_topic("squares", retain_bytes=1024 * 1024)
    with client.subscribe_shared("numbers", "squarers", tries_max=3, unsettled_max=8) as workers:
        client.put_many("numbers", ["1", "2", "three", "4"])
        with ThreadPoolExecutor(4) as pool:
            for task in workers.tasks(timeout_s=1):
                pool.submit(work, task)
    print(sorted(int(message.text) for message in client.read("squares")))
    print([letter.text for letter in client.dead_letters("numbers.dead")])
