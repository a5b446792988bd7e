"""The ``torch.compile`` backend: options, the pipeline of one graph, reports.

Puts search, cost model, store and code generation together. Only ``compiler.inductor`` may import
``torch._inductor``.
"""
