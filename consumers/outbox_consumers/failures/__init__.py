"""Where an event goes when its handler fails, and how people get it back.

`classification` says what an error means: the event's fault, a temporary fault, an outage, a reason to stop.
`destination` decides from that, the handler's `on_failure` and the attempts so far. The event then goes to

- its partition's backlog (`loop.backlog`), where it is retried and the partition waits: `on_failure="block"`;
- `parked`: a table, in a queue per aggregate, where only events of its key wait: `on_failure="park"`;
- `dead_letter`: a table of events that are not tried any more, after `Reject` or too many attempts;
- `dead_letter_topic`: a copy of each dead letter on a Kafka topic, if the consumer names one;
- nowhere, since the consumer stops: `on_failure="stop"`, or too many dead letters (`DeadLetterLimit`).

An event that crashes the process raises no error: `process_crashes` finds it at the next start and makes it
a dead letter after three crashes. `administration` lists, redrives and discards dead letters, and the
`dead_jobs` of durable inboxes beside them.
"""
