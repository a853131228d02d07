#!/bin/sh
# Writes every golden under tests/golden anew (or under $WICK_GOLDEN_OUT). Needs requirements.txt's packages.
set -eu
cd "$(dirname "$0")"
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
python="${PYTHON:-python3}"
for part in sdxl_model lora cases samplers training optimizers tokenizer llm_lines llm_tokenizers llm_marks llm_chat chat_templates chat_ids llama adapters adapter_kinds llm_training comfy_names gguf_blocks row_formats bitsandbytes_files layouts t5 sd3_transformer flux t5_tokenizer sd3 comfy_flow_names lora_layouts flux_pictures prompts replay replay_data replay_objective; do
  echo "== $part"
  "$python" "$part.py"
done
