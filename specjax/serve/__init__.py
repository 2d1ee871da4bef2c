"""An HTTP server of the OpenAI protocol around an ``Engine``. Needs the extra ``serve``.

``schema`` reads requests, ``answers`` writes responses, ``errors`` has the protocol's errors,
``gate`` bounds and drains the work, ``app`` joins them, and ``server`` runs the app.
"""
