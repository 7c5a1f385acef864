import pytest
from contained import ALL, WITHOUT_ROOT

from partita.tasks.graders.sandbox.box import Sandbox


@pytest.fixture(scope="module", params=[ALL, ("namespaces", "seccomp"), WITHOUT_ROOT], ids="+".join)
def box(request):
    sandbox = Sandbox(request.param)
    yield sandbox
    sandbox.close()
