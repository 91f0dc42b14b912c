"""Read by pyinfra before the inventory: guards every deploy of this repository, however it is started."""

from tasks import edge

edge.install()
