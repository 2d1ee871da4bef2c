"""An HTTP server of the OpenAI protocol around an ``Engine``. Needs the extra ``serve``.

``bodies`` reads requests, ``schema`` and ``chat_schema`` have their fields, ``answers`` and
``logprobs`` write responses, and ``errors`` has the protocol's errors. ``turns`` reads the answers
of chats: ``thoughts`` finds the reasoning, and ``tools`` the calls. ``endpoints`` renders chats and
joins these with the engine, ``tokens`` has the routes about tokens, ``streams`` sends texts while
they arrive, and ``gate`` bounds and drains the work. ``options`` has the options of a server,
``app`` all routes and their description, and ``server`` runs the app.
"""
