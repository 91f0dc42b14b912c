"""placeholder"""

import click


@click.command()
def run() -> None: ...
