"""What MLflow runs when it loads a logged cell; the weights come from the folder that was logged beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from safeecgmatch.predicting.conforming import Refused
from safeecgmatch.predicting.serving import respond
from safeecgmatch.predicting.trained import Trained


class BadRequest(MlflowException):
    """Status 400 with the sentence alone: MLflow would put the whole request in front of it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, error_code=INVALID_PARAMETER_VALUE)
        self.sentence = sentence

    def serialize_as_json(self) -> str:
        self.message = self.sentence
        return str(super().serialize_as_json())


class Classifier(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        self.trained = Trained.open(Path(context.artifacts["cell"]))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        try:
            return respond(self.trained, [dict(row) for _, row in model_input.iterrows()])
        except Refused as refusal:
            raise BadRequest(str(refusal)) from None


set_model(Classifier())
