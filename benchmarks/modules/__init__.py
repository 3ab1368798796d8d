"""Models as people train and run them, with random weights, for `benchmarks/module_suite.py`: whose time is theirs?

language    Llama, GPT-2, Qwen2, Mixtral, BERT, T5, Whisper from transformers, two of them compiled
images      ViT from timm, ResNet-50 from torchvision, a DCGAN
cases       their sizes, and what is special about each
"""
