"""PostgreSQL, Kafka and Kafka Connect on this machine, without Docker: the code of scripts/stack.

A stack has a name and lives in .stack/NAME: data, logs, pid files, ports, passwords. The programs it runs
are shared by all stacks and live in .stack/lib; Maven puts them there once, from connectors/runtime/pom.xml.
"""
