"""``antiphase doctor``: what works on this machine."""

from antiphase.commands.command import Command
from antiphase.commands.options import Options


class DoctorOptions(Options):
    """Show versions, devices, kernels and data, and how to get what is missing.

    Nothing is downloaded. Native kernels are built if they are not there yet.

    **Examples**

    antiphase doctor
    antiphase doctor --json
    """


COMMAND = Command("doctor", DoctorOptions, "antiphase.commands.doctor.run:answer")
