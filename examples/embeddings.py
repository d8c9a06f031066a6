"""What of some texts is nearest to a question: `python examples/embeddings.py [URL]`. Needs openai's package."""

import sys

from openai import OpenAI

TEXTS = [
    "Cats are small animals that purr.",
    "The bank raised its interest rates.",
    "Bread is made of flour and water.",
]


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    answer = client.embeddings.create(
        model=model, input=["Which pets do people keep?", *TEXTS], extra_body={"pooling": "mean"}
    )
    question, *texts = [data.embedding for data in answer.data]  # of length 1, so that a product is a cosine
    cosines = [sum(x * y for x, y in zip(question, text, strict=True)) for text in texts]
    for cosine, text in sorted(zip(cosines, TEXTS, strict=True), reverse=True):
        print(f"{cosine:.3f}  {text}")


if __name__ == "__main__":
    main()
