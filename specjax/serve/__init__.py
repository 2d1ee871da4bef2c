"""An HTTP server of the OpenAI protocol around an ``Engine``. Needs the extra ``serve``.

``schema`` reads requests, ``answers`` writes responses, and ``errors`` has the protocol's errors.
``endpoints`` joins these with the engine, ``streams`` sends texts while they arrive, and ``gate``
bounds and drains the work. ``app`` has all routes, and ``server`` runs the app.
"""

from importlib import import_module

try:
    for _package in ("fastapi", "prometheus_client", "uvicorn"):
        import_module(_package)
except ImportError as error:
    raise ImportError(
        f"specjax.serve needs its packages ({error}); install them with pip install 'specjax[serve]'"
    ) from None
