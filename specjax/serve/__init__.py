"""An HTTP server of the OpenAI protocol around an ``Engine``. Needs the extra ``serve``.

``schema`` reads requests, ``answers`` writes responses, and ``errors`` has the protocol's errors.
``endpoints`` joins these with the engine, ``streams`` sends texts while they arrive, and ``gate``
bounds and drains the work. ``options`` has the options of a server, ``app`` all routes, and
``server`` runs the app.
"""
