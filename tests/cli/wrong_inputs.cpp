// Every wrong input ends with its code and one line that names the file or flag, the value found and the one expected.
#include <cmath>

#include "cli/program.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

struct Wrong {
  int code;               // 2: the command line is wrong in itself; 1: a file, a model or a device is
  std::string arguments;  // $R: the sources, $M: the model, $G: tests/golden, $D: a data set, $T: an empty folder
  std::vector<std::string> words;
};

const std::string kGenerate = "generate --model $M --prompt x --out $T/x.png ";
const std::string kForward = "forward --model $M --component unet --in $G/cases/unet.in.safetensors --out $T/x ";

const std::string kForwardTo = "forward --model $M --component unet --in $G/cases/unet.in.safetensors --out ";
const std::string kMerge = "merge --model $M --output $T/x --lora ";
const std::string kPlan = "plan --model $M ";
const std::string kPlanSd3 = "plan --model $G/sd3 --resolution 64 ";
const std::string kForwardSd3 =
    "forward --model $G/sd3 --component transformer --in $G/sd3_transformer/dual/grad.in.safetensors --out $T/x ";
const std::string kTrain = "train --model $M --dataset $D --output $T/out --steps 1 ";

const std::vector<Wrong> kWrong = {
    {2, "", {"command", "train", "generate"}},
    {2, "--nonsense", {"--nonsense"}},
    {2, "draw", {"draw: no such command (see wick --help)"}},
    {2, "trian --model tiny", {"trian: no such command; did you mean train? (see wick --help)"}},
    {2, "hlep train", {"hlep: no such command; did you mean help?"}},
    {2, "Generate", {"Generate: no such command; did you mean generate?"}},
    {2, "--modle tiny", {"--modle: no such flag (see wick --help)"}},
    {2, "--versoin", {"--versoin: no such flag; did you mean --version?"}},
    {2, "help nonsense", {"nonsense: no such command"}},
    {2, "help train plan", {"help: expected one command, found 2"}},

    {2, "generate", {"--model", "required"}},
    {2, "generate --model $M --prompt x", {"--out", "required"}},
    {2,
     "generate --vae $G/layouts/vae.native.safetensors --prompt x --out $T/x.png",
     {"--vae: expected a model beside it, as --model or as --transformer"}},
    {1,
     "generate --model $G/layouts/vae.native.safetensors --prompt x --out $T/x.png",
     {"vae.native.safetensors", "found a VAE alone; pass it with --vae"}},
    {1,
     "generate --transformer $G/layouts/t5.diffusers.safetensors --prompt x --out $T/x.png",
     {"t5.diffusers.safetensors", "expected the transformer of FLUX or SD3, or SDXL's UNet, found a T5 encoder"}},
    {1,
     "generate --model $G/lora_unet.safetensors --prompt x --out $T/x.png",
     {"lora_unet.safetensors", "found a LoRA"}},
    {1, kGenerate + "--t5 $G/layouts/t5.diffusers.safetensors", {"--t5 ", "SDXL has no T5 encoder"}},
    {1,
     kGenerate + "--vae $G/layouts/clip.native.safetensors",
     {"--vae ", "expected a VAE, found a CLIP text encoder"}},
    {1, kGenerate + "--vae $T/none.safetensors", {"--vae ", "none.safetensors", "no such file"}},
    {1, kTrain + "--clip-l $G/layouts/vae.native.safetensors", {"--clip-l ", "expected CLIP-L, found a VAE"}},
    {1, kPlan + "--clip-l $G/layouts/vae.native.safetensors", {"--clip-l ", "expected CLIP-L, found a VAE"}},
    {1, "plan --model tiny-llm --vae $G/layouts/vae.native.safetensors", {"found a language model"}},
    {1, "inspect --t5 $T/none.safetensors", {"none.safetensors", "no such file"}},
    {1, "inspect --t5-tokenizer $T/none", {"$T/none", "no such file"}},
    {1, "inspect --t5-tokenizer $M", {"$M"}},
    {2, "inspect", {"file", "required"}},
    {2, kGenerate + "--nonsense", {"--nonsense: no such flag (see wick generate --help)"}},
    {2, kGenerate + "--nonsense=5", {"--nonsense: no such flag (see"}},
    {2, "generate --modle tiny", {"--modle: no such flag; did you mean --model? (see wick generate --help)"}},
    {2, "generate --mdoel=tiny --pormpt x", {"--mdoel: no such flag; did you mean --model?"}},
    {2, "generate --model $M --pormpt x --mdoel y", {"--pormpt: no such flag; did you mean --prompt?"}},
    {2, "generate model $M", {"model: expected a flag; did you mean --model?"}},
    {2, "generate --model --prompt x", {"--model: expected MODEL, found the flag --prompt"}},
    {2, kGenerate + "--output y.png", {"--output: no such flag; did you mean --out?"}},
    {2, kGenerate + "--repetition 2", {"--repetition: no such flag; did you mean --repetition-penalty?"}},
    {2, kGenerate + "-s 2", {"-s: no such flag (see"}},
    {2, kGenerate + "stray", {"stray: expected a flag (see"}},
    {2, kGenerate + "--steps", {"--steps"}},
    {2, kGenerate + "--steps 0", {"--steps", "'0'", "at least 1"}},
    {2, kGenerate + "--steps -3", {"--steps", "'-3'", "at least 1"}},
    {2, kGenerate + "--steps 1.5", {"--steps", "'1.5'", "integer"}},
    {2, kGenerate + "--steps 010x", {"--steps", "'010x'", "integer"}},
    {2, kGenerate + "--steps ''", {"--steps", "''", "integer"}},
    {2, kGenerate + "--steps 99999999999999999999", {"--steps", "integer"}},
    {1, kGenerate + "--steps 1001", {"--steps", "1001", "1000"}},
    {2, kGenerate + "--steps 1 --steps 2", {"--steps"}},
    {2, kGenerate + "--cfg nan", {"--cfg", "'nan'", "number"}},
    {2, kGenerate + "--cfg inf", {"--cfg", "'inf'", "number"}},
    {2, kGenerate + "--cfg -1", {"--cfg", "'-1'", "number"}},
    {2, kGenerate + "--cfg 0.5", {"--cfg", "'0.5'", "1 to 100"}},
    {2, kGenerate + "--cfg five", {"--cfg", "'five'", "number"}},
    {2, kGenerate + "--seed -1", {"--seed", "'-1'", "integer"}},
    {2, kGenerate + "--seed nan", {"--seed", "'nan'", "integer"}},
    {2,
     kGenerate + "--seed 18446744073709551615",
     {"--seed", "from 0 to 9223372036854775807", "'18446744073709551615'"}},
    {2, kGenerate + "--steps 3000000000", {"--steps", "from 1 to 2147483647", "'3000000000'"}},
    {2, kTrain + "--seed 18446744073709551615", {"--seed", "from 0 to 9223372036854775807", "'18446744073709551615'"}},
    {2, kTrain + "--steps 3000000000", {"--steps", "from 1 to 2147483647", "'3000000000'"}},
    {2, kTrain + "--save-dtype float8", {"--save-dtype", "one of f32, bf16, f16", "'float8'"}},
    {1,
     kTrain + "--device cpu --lr 1e-4 'text_encoder*=5e-5'",
     {"--lr: \"text_encoder*\" matches no module that is trained",
      "--targets 'unet.*.attentions.*' 'text_encoder*' would train it too"}},
    {1,
     "generate --model $T/x.safetensors --prompt x --out $T/x.png",
     {"--model $T/x.safetensors: no such file or folder", "in one safetensors file", "GGUF"}},
    {2, kGenerate + "--sampler heun", {"--sampler", "'heun'", "euler, euler-ancestral"}},
    {2, kGenerate + "--sampler eular", {"--sampler", "'eular'; did you mean euler?"}},
    {2, kGenerate + "--strength 0.5", {"--strength", "--init"}},
    {2, kGenerate + "--init $M/unet/config.json --strength 0", {"--strength", "'0'"}},
    {1, kGenerate + "--init $T/none.png", {"none.png", "No such file"}},
    {1, kGenerate + "--init $M/unet/config.json", {"config.json", "JPEG, PNG, WebP"}},
    {2, kGenerate + "--batch-size 0", {"--batch-size", "'0'"}},
    {2, kGenerate + "--vae-tile 65", {"--vae-tile", "multiple of 8", "65"}},
    {2, kGenerate + "--vae-tile 8", {"--vae-tile", "'8'"}},
    {2, kGenerate + "--prompt-syntax comfy", {"--prompt-syntax", "'comfy'; did you mean comfyui?"}},
    {2, kGenerate + "--prompt-syntax comfyui --prompt '(y:nan)'", {"--prompt-syntax comfyui", "finite", "nan"}},
    {2,
     kGenerate + "--prompt-syntax comfyui --negative embedding:hands",
     {"--prompt-syntax comfyui", "\"embedding:hands\"", "textual inversion"}},
    {2, kGenerate + "--width 65", {"--width", "65", "multiple of 8"}},
    {2, kGenerate + "--height 4", {"--height", "4", "multiple of 8"}},
    {2, kGenerate + "--height 0", {"--height", "'0'"}},
    {2, kGenerate + "--width 1000000", {"--width", "1000000", "16384"}},
    {2, kGenerate + "--bf16 --fp16", {"--bf16", "--fp16"}},
    {2, kGenerate + "--compare", {"--compare", "--lora"}},

    {1, "generate --model $T --prompt x --out $T/x.png", {"--model", "$T", "model_index.json"}},
    {1,
     "generate --model $T/none --prompt x --out $T/x.png",
     {"--model", "$T/none", "diffusers or transformers folder"}},
    {1, "generate --model $M/model_index.json --prompt x --out $T/x.png", {"--model", "diffusers folder", "a file"}},
    {2, "generate --model '' --prompt x --out $T/x.png", {"--model"}},
    {1, "generate --model sdxl --prompt x --out $T/x.png", {"sdxl", "stabilityai", "$T"}},
    {1, "generate --model some/body --prompt x --out $T/x.png", {"some/body", "models--some--body"}},

    {1, "generate --model tinny --prompt x --out $T/x.png", {"--model tinny", "did you mean tiny?"}},

    {2, "generate --model $M --prompt x --out $T/elsewhere", {"--out", "$T", ".png"}},
    {2, "generate --model $M --prompt x --out $T/a.gif", {"--out", "$T/a.gif", "ends in .png, .jpg, .jpeg or .webp"}},
    {2, "generate --model $M --prompt x --out $T/png", {"--out", "$T/png", "ends in .png"}},
    {2, "generate --model $M --prompt x --out ''", {"--out", "''"}},
    {1, "generate --model $M --prompt x --out $R/docs/demo.png", {"--out", "demo.png: the file exists", "--overwrite"}},
    {1, "generate --model $M --prompt x --out $T/none/x.png", {"--out", "$T/none", "does not exist"}},
    {1, "generate --model $M --prompt x --out $M/model_index.json/x.png", {"--out", "model_index.json", "folder"}},

    {1, kGenerate + "--lora $T/none.safetensors", {"--lora", "$T/none.safetensors", "no such file"}},
    {1, kGenerate + "--lora $T", {"--lora", "$T", "folder"}},
    {2, kGenerate + "--lora $G/lora_unet.safetensors:strong", {"--lora", "'strong'", "finite number"}},
    {2, kGenerate + "--lora $G/lora_unet.safetensors:nan", {"--lora", "'nan'", "finite number"}},
    {2, kGenerate + "--lora $G/lora_unet.safetensors:", {"--lora", "''", "finite number"}},
    {2, kGenerate + "--lora $G/lora_unet.safetensors:inf", {"--lora", "'inf'", "finite number"}},
    {2, kGenerate + "--lora $G/lora_unet.safetensors:1e30", {"--lora", "'1e30'", "from -100 to 100"}},
    {2, kGenerate + "--lora $G/lora_unet.safetensors:-100.5", {"--lora", "'-100.5'", "from -100 to 100"}},
    {1, kGenerate + "--lora $M/model_index.json", {"--lora $M/model_index.json"}},
    {1, kGenerate + "--lora $M/model_index.json:0.5", {"--lora $M/model_index.json: "}},
    {1,
     kGenerate + "--lora $G/llama/llama2/adapter",
     {"--lora $G/llama/llama2/adapter/adapter_model.safetensors", "fit no layer"}},
    {1,
     kGenerate + "--lora $M/unet/diffusion_pytorch_model.safetensors",
     {"diffusion_pytorch_model.safetensors", "LoRA"}},

    {2, "train", {"--model"}},
    {2, "train --modle tiny", {"--modle: no such flag; did you mean --model? (see wick train --help)"}},
    {2, kTrain + "--lerning_rate 1", {"--lerning_rate: no such flag"}},
    {2, kTrain + "--batchsize 1", {"--batchsize: no such flag; did you mean --batch-size?"}},
    {2, kTrain + "--checkpointing", {"--checkpointing: no such flag; did you mean --gradient-checkpointing?"}},
    {2, kTrain + "--targets", {"--targets"}},
    {2, kTrain + "--bf16 --dtype f16", {"--dtype", "--bf16"}},
    {2, kTrain + "--nonsense", {"--nonsense"}},
    {2, kTrain + "--rank 0", {"--rank", "'0'", "1"}},
    {2, kTrain + "--rank nan", {"--rank", "'nan'", "integer"}},
    {2, kTrain + "--lr nan", {"--lr", "'nan'", "number"}},
    {2, kTrain + "--lr -1", {"--lr", "'-1'", "number"}},
    {2, kTrain + "--alpha inf", {"--alpha", "'inf'", "number"}},
    {2, kTrain + "--batch-size 0", {"--batch-size", "'0'"}},
    {2, kTrain + "--lr-schedule step", {"--lr-schedule", "'step'", "cosine"}},
    {2, kTrain + "--rank 4 8", {"--rank", "PATTERN=NUMBER", "\"8\""}},
    {2, kTrain + "--rank attn=0", {"--rank: attn", "'0'", "integer from 1"}},
    {2, kTrain + "--lr 1e-4 =2", {"--lr", "PATTERN=NUMBER", "\"=2\""}},
    {2, kTrain + "--lr 1e-4 attn=fast", {"--lr: attn", "'fast'"}},
    {2, kTrain + "--conv-alpha 2", {"--conv-alpha", "--conv-rank"}},
    {2, kTrain + "--warmup 2.5", {"--warmup", "'2.5'", "whole number"}},
    {2, kTrain + "--lora-plus 0", {"--lora-plus", "'0'"}},
    {2, kTrain + "--lr-scheduler-num-cycles 0", {"--lr-scheduler-num-cycles", "'0'"}},
    {2, kTrain + "--lr-scheduler-power -1", {"--lr-scheduler-power", "'-1'"}},
    {2, kTrain + "--ema-warmup slow", {"--ema-warmup", "'slow'", "updates, power, none"}},
    {2, kTrain + "--optimizer prodigy --lr 1 attn=2", {"--optimizer prodigy", "--lr", "patterns"}},
    {2, kTrain + "--optimizer prodigy --lora-plus 4", {"--optimizer prodigy", "--lora-plus"}},
    {2, kTrain + "--from a.safetensors --rank 4", {"--from", "--rank"}},
    {2, kTrain + "--from a.safetensors --targets unet.*", {"--from", "--targets"}},
    {2, kTrain + "--from a.safetensors --train full", {"--from", "--train lora", "full"}},
    {1, kTrain + "--from $M/model_index.json", {"--from $M/model_index.json"}},
    {2, kTrain + "--keep-last -1", {"--keep-last", "'-1'"}},
    {2, kTrain + "--save-every-epochs -1", {"--save-every-epochs", "'-1'"}},
    {2, kTrain + "--sample-every 3", {"--sample-every", "--sample-prompts"}},
    {2, kTrain + "--sample-every -1", {"--sample-every", "'-1'"}},
    {2, kTrain + "--sample-every-epochs x", {"--sample-every-epochs", "'x'"}},
    {1, kTrain + "--sample-prompts $T/none.txt", {"--sample-prompts $T/none.txt", "No such file"}},
    {1, kTrain + "--sample-prompts $R/docs", {"--sample-prompts $R/docs: expected a file"}},
    {2, kTrain + "--sample-prompts $R/docs/demo.png", {"--sample-prompts $R/docs/demo.png: line 1", "UTF-8"}},
    {2, kTrain + "--sample-prompts $R/fuzz/corpus/sample_prompts/odd.txt", {"odd.txt: line 1: --g", "not told"}},
    {2, kTrain + "--sample-prompts $R/fuzz/corpus/kohya_config/flux.toml", {"flux.toml", "[[prompt.subset]]", ".toml"}},
    {2, kTrain + "--preset kohya", {"--preset", "\"kohya\"; did you mean kohya-sdxl?"}},
    {2, kTrain + "--preset kohya-flux", {"--preset kohya-flux: is for flux", "stable-diffusion-xl"}},
    {2, kTrain + "--preset kohya-sdxl --kohya-config $T/x.toml", {"--kohya-config", "--preset"}},
    {1, kTrain + "--kohya-config $T/none.toml", {"--kohya-config $T/none.toml", "No such file"}},
    {1, "train --explain-config $T/none.toml", {"--explain-config $T/none.toml", "No such file"}},
    {2, "train --explain-config $R/docs/demo.png", {"--explain-config $R/docs/demo.png"}},
    {2, "train --config $R/docs/demo.png", {"--config $R/docs/demo.png"}},
    {2, kTrain + "--kohya-config $R/docs/demo.png", {"--kohya-config $R/docs/demo.png"}},
    {2, kTrain + "--kohya-config $R/data/tiny-style/0002.txt", {"--kohya-config", "0002.txt: line 1"}},
    {2, kTrain + "--min-snr-gamma -1", {"--min-snr-gamma", "'-1'"}},
    {2, kTrain + "--debiased-estimation-loss=x", {"--debiased-estimation-loss"}},
    {2, kTrain + "--weighting-scheme cosmap", {"--weighting-scheme", "no rectified flow"}},
    {2, kTrain + "--weighting-scheme cos", {"--weighting-scheme", "'cos'", "cosmap"}},
    {2, "train --model $G/sd3 --dataset $D --output $T/out --min-snr-gamma 5", {"--min-snr-gamma", "rectified flow"}},
    {2, kTrain + "--loss-type l3", {"--loss-type", "'l3'", "smooth-l1"}},
    {2, kTrain + "--huber-c 0", {"--huber-c", "'0'", "above 0"}},
    {2, kTrain + "--huber-c 0.2", {"--huber-c", "--loss-type huber"}},
    {2, kTrain + "--huber-schedule slow", {"--huber-schedule", "'slow'", "exponential"}},
    {2, kTrain + "--huber-scale nan", {"--huber-scale", "'nan'"}},
    {2, kTrain + "--noise-offset 99", {"--noise-offset", "'99'", "from 0 to 10"}},
    {2, kTrain + "--multires-noise-iterations -1", {"--multires-noise-iterations", "'-1'"}},
    {2, kTrain + "--multires-noise-discount 0.5", {"--multires-noise-discount", "--multires-noise-iterations"}},
    {2, kTrain + "--ip-noise-gamma x", {"--ip-noise-gamma", "'x'"}},
    {2, kTrain + "--train vae --noise-offset 0.1", {"--noise-offset", "--train vae"}},
    {2, kTrain + "--rank-dropout 1", {"--rank-dropout", "'1'", "0.999"}},
    {2, kTrain + "--module-dropout 1", {"--module-dropout", "'1'", "0.999"}},
    {2, kTrain + "--scale-weight-norms -1", {"--scale-weight-norms", "'-1'"}},
    {2, kTrain + "--train full --scale-weight-norms 1", {"--scale-weight-norms", "--train is full"}},
    {2,
     kTrain + "--optimizer schedule-free --scale-weight-norms 1",
     {"--scale-weight-norms", "--optimizer schedule-free"}},
    {2, kTrain + "--resolution 64 --min-bucket-reso 128", {"--min-bucket-reso", "at most 64", "128"}},
    {2, kTrain + "--resolution 64 --max-bucket-reso 32", {"--max-bucket-reso", "at least 64", "32"}},
    {2, kTrain + "--no-bucket --no-upscale", {"--no-upscale", "--no-bucket"}},
    {2, kTrain + "--rslora=much", {"--rslora"}},
    {2, kTrain + "--save-every-minutes x", {"--save-every-minutes", "'x'"}},
    {2, kTrain + "--optimizer adam", {"--optimizer", "'adam'", "adamw8bit", "schedule-free"}},
    {2, kTrain + "--optimizer schedule-free --lr-schedule linear", {"--lr-schedule", "schedule-free", "linear"}},
    {2, kTrain + "--optimizer schedule-free --ema 0.9", {"--ema", "schedule-free", "0.9"}},
    {1, kTrain + "--config $T/none.toml", {"--config $T/none.toml", "No such file"}},
    {1, "train --model $T/none --dataset $D --output $T/out", {"--model", "$T/none"}},
    {1, "train --model $M --dataset $T --output $T/out", {"--dataset $T"}},
    {2, "train --model $M --dataset '' --output $T/out", {"--dataset", "''"}},
    {1, "train --model $M --dataset $T/none --output $T/out", {"--dataset $T/none"}},
    {1, "train --model $M --dataset $T/none.toml --output $T/out", {"--dataset $T/none.toml", "No such file"}},
    {1, kTrain + "--val $T/none", {"--val $T/none: no such folder"}},
    {1, kTrain + "--val $R/docs/decisions", {"--val $R/docs/decisions", "no picture found"}},
    {2, kTrain + "--val $D $D", {"--val: expected one folder of pictures", "found 2"}},
    {2, kTrain + "--train vae --val $D", {"--val", "--train vae"}},
    {2, kTrain + "--val-every x", {"--val-every", "'x'"}},
    {1, kTrain + "--cache $G/lora_te.safetensors", {"--cache $G/lora_te.safetensors", "expected a folder"}},
    {1, kTrain + "--cache $D/cache", {"--cache $D/cache: lies in --dataset $D"}},
    {2, kTrain + "--cache ''", {"--cache", "''"}},
    {2, kTrain + "--masked-loss", {"--masked-loss: expected masks", "--alpha-mask"}},
    {1,
     kTrain + "--conditioning-data-dir $T/none --masked-loss",
     {"24 faults", "0001.png: no mask", "$T/none/0001.png"}},
    {2, kTrain + "--conditioning-data-dir $D", {"names masks of pictures", "--masked-loss"}},
    {2, kTrain + "--alpha-mask --conditioning-data-dir $D", {"--alpha-mask and --conditioning-data-dir"}},
    {2, kTrain + "--prior-loss-weight 0.5", {"--prior-loss-weight", "--reg-data-dir"}},
    {2, kTrain + "--prior-loss-weight -1", {"--prior-loss-weight", "'-1'", "from 0 to 1000"}},
    {1, kTrain + "--reg-data-dir $T/none", {"--reg-data-dir $T/none: no such folder"}},
    {2, kTrain + "--train vae --flip-aug", {"--train vae", "augmented"}},
    {2, kTrain + "--flip-aug 1", {"1: expected a flag"}},
    {2, kTrain + "--keep-tokens -1", {"--keep-tokens", "'-1'", "at least 0"}},
    {2, kTrain + "--caption-tag-dropout-rate 1.5", {"--caption-tag-dropout-rate", "'1.5'", "from 0 to 1"}},
    {2, kTrain + "--caption-dropout-rate x", {"--caption-dropout", "'x'", "from 0 to 1"}},
    {2, kTrain + "--caption-variants 0", {"--caption-variants", "'0'", "from 1 to 1024"}},
    {2, kTrain + "--caption-separator ''", {"--caption-separator", "''"}},
    {2, kTrain + "--caption-extension txt", {"--caption-extension", "'txt'", ".txt"}},
    {2, kTrain + "--shuffle-captoin", {"--shuffle-captoin: no such flag; did you mean --shuffle-caption?"}},
    {1, kTrain + "--caption-extension .tags", {"--dataset $D", "24 faults", "no caption", "0001.tags"}},
    {2, "train --model tiny-llm --dataset $D --output $T/out --trigger-word x", {"--trigger-word", "a model of text"}},
    {1,
     "train --model $M --dataset $D/none --output $M/model_index.json",
     {"--output", "found the file $M/model_index.json"}},
    {1,
     "train --model $M --dataset $D/none --output $M/model_index.json/x",
     {"--output", "found the file $M/model_index.json"}},

    {1,
     kTrain + "--device cpu --batch-size 65536 --resolution 4096",
     {"would need", "on cpu", "are free", "--batch-size 1", "save"}},

    {2, "plan", {"--model"}},
    {2, kPlan + "--nonsense", {"--nonsense"}},
    {2, kPlan + "--rank 0", {"--rank", "'0'", "1"}},
    {2, kPlan + "--resolution 8", {"--resolution", "8"}},
    {2, kPlan + "--resolution 64 128 64", {"--resolution", "64 twice"}},
    {2, kPlan + "--resolution 64 x", {"--resolution", "'x'", "at most 16384"}},
    {2, kPlan + "--bucket-step 24", {"--bucket-step", "multiple of 32", "24"}},
    {2, kPlan + "--bucket-step 256", {"--resolution", "at least 256", "128"}},
    {2, kPlan + "--device tpu", {"--device", "'tpu'"}},
    {2, kPlan + "--bf16 --fp16", {"--bf16", "--fp16"}},
    {1, kPlan + "--targets '" + std::string(60, '*') + "z'", {"--targets", "****z", "matches no module"}},
    {1, kPlan + "--targets '*_*_*_*_*.*.*.*.*.*.*o*o*t*t*k*z'", {"--targets", "*k*z", "matches no module"}},
    {1,
     kPlanSd3 + "--targets 'transformer_blocks.*'",
     {"--targets", "transformer_blocks.*", "another program's name", "transformer.joint_blocks.*.x_block.attn.qkv"}},
    {1, kPlanSd3 + "--targets *.proj_mlp", {"--targets", "*.proj_mlp", "matches no module"}},
    {1,
     kForwardSd3 + "--lora $G/flux/dev/lora.safetensors",
     {"flux/dev/lora.safetensors", "26 of its 26 modules", "it looks like a LoRA for FLUX, kohya's names"}},
    {1, kForwardSd3 + "--lora $G/lora_unet.safetensors", {"lora_unet.safetensors", "looks like a LoRA for SDXL"}},
    {1,
     kForwardSd3 + "--lora $G/lora_layouts/flux/split.safetensors",
     {"split.safetensors", "a LoRA for FLUX, diffusers names", "linear_1.lora_B.weight", "[16, rank]", "[48, 1]"}},
    {1,
     kPlan + "--quantize fp8 --keep-precision 'nothing*'",
     {"--keep-precision", "\"nothing*\" matches no matrix of the UNet's blocks"}},
    {1, kPlan + "--quantize fp8 --keep-precision '*'", {"--keep-precision", "leaves no matrix", "--quantize"}},
    {2, kPlan + "--keep-precision '*'", {"--keep-precision", "--quantize or --memory"}},
    {2, kPlan + "--memory ''", {"--memory", "SIZE", "''"}},
    {2, kPlan + "--memory 12G", {"--memory", "12GiB", "\"12G\""}},
    {2, "generate --model $M --prompt x --out $T/x.png --memory ''", {"--memory", "a size like 12GiB", "\"\""}},
    {2, "generate --model $M --prompt x --out $T/x.png --memory 1GiB,2GiB", {"--memory", "a size", "1GiB,2GiB"}},
    {2, "generate --model $M --prompt x --out $T/x.png --host-memory ''", {"--host-memory", "a size like 12GiB"}},
    {1,
     "generate --model $M --prompt x --out $T/x.png --device cpu --memory 1MiB",
     {"--memory 1MiB", "at least", "more, with weights in int8"}},
    {1, kTrain + "--device cpu --memory 1MiB", {"--memory 1MiB", "at least", "more, with the base in int8"}},
    {1, kPlan + "--targets nothing*", {"--targets", "nothing*", "it has unet.*.attn1.to_k, ", "…"}},
    {1, "plan --model $T/none", {"--model", "$T/none"}},

    {2, "inspect", {"file", "required"}},
    {2, "inspect ''", {"file", "found none"}},
    {1, "inspect $T/none", {"$T/none", "no such file"}},
    {1, "inspect $T", {"$T", "safetensors"}},
    {1, "inspect $M/model_index.json", {"model_index.json"}},
    {2, "inspect $M --nonsense", {"--nonsense"}},
    {2, "inspect $M $M", {"$M: expected a flag (see wick inspect --help)"}},

    {2, "forward", {"required"}},
    {2, "forward --model $M --component vae --in x --out $T/x", {"--component", "'vae'", "vae.encoder"}},
    {1, "forward --model $M --component unet --in $T/none --out $T/x", {"--in", "$T/none", "no such file"}},
    {1, "forward --model $M --component unet --in $T --out $T/x", {"--in", "$T", "directory"}},
    {1,
     "forward --model $M --component vae.decoder --in $G/cases/unet.in.safetensors --out $T/x",
     {"--in $G/cases/unet.in.safetensors", "latent"}},
    {1,
     "forward --model $M --component tokenizer --in $G/cases/unet.in.safetensors --out $T/x",
     {"--in $G/cases/unet.in.safetensors: line 1", "not valid JSON"}},
    {1,
     "forward --model $M --component tokenizer_2 --in $G/cases/index.json --out $T/x",
     {"--in $G/cases/index.json: line 1"}},
    {2,
     "forward --model $M --component tokenizer --in $G/cases/index.json --out $T/x --grad",
     {"--component tokenizer", "neither --lora nor --grad"}},
    {2,
     "forward --model $M --component tokenizer_3 --in $G/cases/index.json --out $T/x",
     {"--component", "'tokenizer_3'", "did you mean tokenizer_2"}},
    {1, kForward + "--grad", {"unet.in.safetensors", "target"}},
    {1, kForward + "--lora $G/lora_te.safetensors", {"lora_te.safetensors"}},
    {1, "forward --model $M --component unet --in $G/cases/unet.in.safetensors --out $T", {"--out", "$T", "directory"}},
    {1, kForwardTo + "/dev/full", {"--out", "/dev/full", "regular"}},
    {2, kForwardTo + "''", {"--out", "''"}},
    {1, kForwardTo + "$G/lora_te.safetensors", {"--out $G/lora_te.safetensors: the file exists", "--overwrite"}},
    {1,
     kForwardTo + "$G/cases/unet.in.safetensors --overwrite",
     {"--out", "is the file $G/cases/unet.in.safetensors, which the command reads"}},
    {1,
     kForwardTo + "$G/lora_te.safetensors --overwrite --lora $G/lora_te.safetensors",
     {"--out", "is the file $G/lora_te.safetensors, which the command reads"}},
    {1,
     kForwardTo + "$M/unet/diffusion_pytorch_model.safetensors --overwrite",
     {"--out", "is a file of the folder $M, which the command reads"}},

    {2, "convert --model $G/llama/text --output ''", {"--output", "''"}},
    {1, "convert --model $G/llama/text --output $T", {"--output", "directory"}},
    {1,
     "convert --model $G/gguf/model.gguf --output $G/gguf/model.gguf --overwrite",
     {"--output", "is the file $G/gguf/model.gguf"}},
    {2, "convert --model $G/llama/text --output $T/x --dtype q4", {"--dtype", "'q4'", "did you mean q4_k?"}},
    {2,
     "convert --model $G/llama/text --output $T/x --dtype fp8 --max-shard-size 5",
     {"--max-shard-size", "like 5GB or 500MiB", "\"5\""}},
    {2,
     "convert --model $G/llama/text --output $T/x.gguf --dtype q8_0 --max-shard-size 5GB",
     {"--max-shard-size", "transformers folder", "nf4-double"}},
    {2,
     "convert --model $G/llama/text --output $T/x --dtype fp8 --fp8-layout comfy_quant",
     {"--fp8-layout", "models of pictures"}},
    {2, "convert --model $M --output $T/x --dtype nf4 --fp8-layout comfy_quant", {"--fp8-layout", "--dtype fp8"}},
    {2, "convert --model $M --output $T/x --dtype fp8 --fp8-layout scaled_fp8", {"--fp8-layout", "single file"}},
    {2, "convert --model $M --output $T/x --dtype fp8 --fp8-layout old", {"--fp8-layout", "'old'", "comfy_quant"}},
    {2,
     "convert --lora $G/lora_unet.safetensors --to comfy --fp8-layout scaled_fp8 --output $T/x",
     {"--fp8-layout", "models"}},
    {2, "merge --model $G/llama/text --output $T/x", {"--lora", "required"}},
    {2, kMerge + "$G/lora_unet.safetensors:vae=1", {"--lora", "no part \"vae\"", "text_encoder, text_encoder_2, unet"}},
    {2, kMerge + "$G/lora_unet.safetensors:unte=1", {"no part \"unte\"", "did you mean unet?"}},
    {2, kMerge + "$G/lora_unet.safetensors:unet=high", {"FILE:PART=STRENGTH", "'unet=high'"}},
    {2, kMerge + "$G/lora_unet.safetensors:=1", {"FILE:PART=STRENGTH", "'=1'"}},
    {2, kMerge + "$G/lora_unet.safetensors:unet=1,unet=2", {"two strengths of unet"}},
    {2, kMerge + "$G/lora_unet.safetensors:unet=1,2", {"the strength of all parts first"}},
    {2,
     "merge --model $G/llama/text --output $T/x --lora $G/llama/llama2/adapter:unet=1",
     {"--lora", "a language model has no part \"unet\""}},
    {2, kMerge + "$G/lora_unet.safetensors --rank 4", {"--rank", "without --model"}},
    {2, "merge --lora $G/lora_unet.safetensors --output $T/x --dtype f16", {"--dtype", "without --model"}},
    {2, "merge --lora $G/lora_unet.safetensors:transformer=1 --output $T/x", {"--lora", "no part \"transformer\""}},
    {1, kMerge + "$G/llama/llama2/adapter", {"--lora $G/llama/llama2/adapter", "no layer of this model"}},
    {1, kMerge + "$G/lora_unet.safetensors:0", {"--lora", "nothing of", "would change"}},
    {2, kMerge + "$G/lora_unet.safetensors --dtype q8_0", {"--dtype", "f32, f16 or bf16", "q8_0"}},
    {1, "merge --model $M --lora $G/lora_unet.safetensors --output $M", {"--output $M", "the folder exists"}},
    {1,
     "merge --model $M --lora $G/lora_unet.safetensors --output $M/unet/config.json --overwrite",
     {"--output", "is a file of the folder $M, which the command reads"}},
    {2,
     "eval --model $G/llama/text --dataset $T/x --context 8 --stride 8",
     {"--stride", "less than the 8 tokens", "8"}},
    {2, "eval --model $G/llama/text --dataset ''", {"--dataset"}},
    {1, "eval --model $G/llama/text --dataset $T/x --context 100000", {"--context", "100000"}},
    {2, "doctor --device cpu", {"--device: no such flag (see wick doctor --help)"}},
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

TEST(WrongInputs, EndWithOneLine) {
  for (const Wrong& wrong : kWrong) {
    const TemporaryDirectory folder;
    const auto filled = [&](std::string text) {
      text = replace_all(replace_all(text, "$M", kModel), "$G", kGolden.string());
      text = replace_all(text, "$R", test::source_dir().string());
      text = replace_all(text, "$D", (test::source_dir() / "data/tiny-style").string());
      return replace_all(text, "$T", folder.path().string());
    };
    SCOPED_TRACE("wick " + wrong.arguments);
    std::vector<std::string> words;
    for (const std::string& word : wrong.words) words.push_back(filled(word));
    const Outcome outcome = run_wick(filled(wrong.arguments), "HF_HOME='" + folder.path().string() + "'");
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, wrong.code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(folder.entries(), size_t{0}) << "something was written";
  }
}

// Before anything else, whatever the command.
TEST(WrongInputs, VariablesOfTheEnvironment) {
  const std::pair<const char*, std::vector<std::string>> rows[] = {
      {"WICK_CPU=avx512", {"WICK_CPU: expected avx2 or portable, found 'avx512'"}},
      {"WICK_CPU=", {"WICK_CPU: expected avx2 or portable, found ''"}},
      {"WICK_CPU=\"$(printf 'a\\033[31m\\nb')\"", {"WICK_CPU: expected avx2 or portable, found 'a\\x1b[31m b'"}},
      {"WICK_THREADS=0", {"WICK_THREADS: expected an integer from 1 to 2147483647, found '0'"}},
      {"WICK_THREADS=two", {"WICK_THREADS", "'two'"}},
      {"WICK_THREADS=99999999999999999999", {"WICK_THREADS", "'99999999999999999999'"}},
      {"WICK_THREADS=4,2", {"WICK_THREADS", "'4,2'"}},
      {"WICK_CUDA_POOL=on", {"WICK_CUDA_POOL: expected off, found 'on'"}},
      {"WICK_CUDNN=0", {"WICK_CUDNN: expected off, found '0'"}},
      {"WICK_CUDA_CAPABILITY=8.0", {"WICK_CUDA_CAPABILITY: expected an integer from 10 to 999, found '8.0'"}},
      {"WICK_CUBLASLT_ALIGNMENT=0", {"WICK_CUBLASLT_ALIGNMENT", "from 1 to 256", "'0'"}},
      {"WICK_ID_PORT=70000", {"WICK_ID_PORT", "from 1 to 65535", "70000"}},
      {"WICK_RANK_TIMEOUT=soon", {"WICK_RANK_TIMEOUT", "soon"}},
      {"WICK_FAULT=device", {"WICK_FAULT", "device:RANK:STEP"}}};
  for (const auto& [variable, words] : rows)
    for (const std::string& command : {std::string(), std::string("--version"), std::string("train --help"),
                                       "inspect " + kModel, std::string("plan --model tiny")}) {
      SCOPED_TRACE(std::string(variable) + " wick " + command);
      const Outcome outcome = run_wick(command, variable);
      expect_one_line(outcome, words);
      EXPECT_EQ(outcome.code, 2);
      EXPECT_EQ(outcome.out, "");
    }
  for (const char* variable : {"OMP_NUM_THREADS=0", "OMP_NUM_THREADS=x", "OMP_NUM_THREADS=2,", "OMP_NUM_THREADS="}) {
    const Outcome outcome = run_wick("inspect " + kModel, variable);
    EXPECT_EQ(outcome.code, 2) << variable;
    EXPECT_NE(outcome.err.find("wick: OMP_NUM_THREADS: expected an integer from 1 to 2147483647"), std::string::npos)
        << outcome.err;
  }
  for (const char* variable : {"WICK_CPU=avx2", "WICK_CPU=portable", "OMP_NUM_THREADS=2,1", "WICK_THREADS=1",
                               "WICK_CUDNN=off", "WICK_RANK_TIMEOUT=", "WICK_FAULT="})
    EXPECT_EQ(run_wick("inspect " + kModel, variable).code, 0) << variable;
}

// Before the weights are loaded.
TEST(WrongInputs, DrawsThatDoNotFitAreNamed) {
  const auto expect_wrong = [](const std::map<std::string, Tensor>& tensors, const std::string& sampler,
                               std::vector<std::string> words) {
    const TemporaryDirectory folder;
    save_safetensors(folder / "n.safetensors", tensors);
    const Outcome outcome =
        run_wick("generate --device cpu --model '" + kModel + "' --prompt x --steps 3 --sampler " + sampler +
                 " --noise '" + (folder / "n.safetensors").string() + "' --out '" + (folder / "x.png").string() + "'");
    words.insert(words.end(), {"--noise", "n.safetensors"});
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(folder.entries(), size_t{1});
  };
  const Tensor x = zeros({2, 4, 6, 8});
  const std::string ancestral = "euler-ancestral";
  expect_wrong({{"noise.0", x}, {"noise.1", x}}, ancestral, {"no tensor \"noise\"", "noise.0, noise.1"});
  expect_wrong({{"noise", x}}, ancestral,
               {"no tensor \"noise.0\"", "--sampler euler-ancestral draws 2 times in 3 steps", "noise.0 to noise.1"});
  expect_wrong({{"noise", x}, {"noise.0", x}}, "lcm", {"no tensor \"noise.1\"", "--sampler lcm draws 2 times"});
  expect_wrong({{"noise", x}, {"noise.0", x}, {"noise.2", x}}, ancestral, {"no tensor \"noise.1\""});
  expect_wrong({{"noise", x}, {"noise.0", x}, {"noise.1", x}, {"noise.2", x}}, "dpmpp-sde",
               {"no tensor \"noise.3\"", "draws 4 times in 3 steps", "noise.0 to noise.3"});
  expect_wrong({{"noise", x}, {"noise.0", x}, {"noise.1", zeros({1, 4, 6, 8})}}, ancestral,
               {"\"noise.1\" should have shape [2, 4, 6, 8], found [1, 4, 6, 8]"});
  expect_wrong({{"noise", x}, {"noise.0", zeros({2, 4, 8, 6})}}, ancestral, {"\"noise.0\"", "found [2, 4, 8, 6]"});
  expect_wrong({{"noise", x}, {"noise.0", zeros({2, 4, 6, 8}, DType::i64)}}, ancestral,
               {"\"noise.0\" should be F32, F16 or BF16, found I64"});
  expect_wrong({{"noise", x}, {"noise.0", full({2, 4, 6, 8}, NAN)}}, ancestral, {"\"noise.0\"", "finite", "nan"});
}

TEST(WrongInputs, ADamagedModelNamesTheFile) {
  const TemporaryDirectory folder;
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(kModel, model, std::filesystem::copy_options::recursive);
  const std::string command =
      "generate --model '" + model.string() + "' --prompt x --out '" + (folder / "x.png").string() + "'";

  const auto damage = [&](const std::string& file, const std::string& bytes, const std::vector<std::string>& words) {
    const std::string whole = read_plain(model / file);
    write_plain(model / file, bytes);
    expect_one_line(run_wick(command), words);
    write_plain(model / file, whole);
  };
  damage("unet/config.json", "{", {"unet/config.json"});
  damage("scheduler/scheduler_config.json", R"({"prediction_type": "sample"})",
         {"scheduler_config.json", "prediction_type", "epsilon", "sample"});
  damage("tokenizer/merges.txt", "\xff\xfe", {"merges.txt"});
  damage("model_index.json", "[]", {"model_index.json"});
  const std::string weights = "vae/diffusion_pytorch_model.safetensors";
  damage(weights, read_plain(model / weights).substr(0, 5000), {weights});
  damage(weights, "", {weights});
}

TEST(WrongInputs, AFullDiskIsOneLine) {
  const TemporaryDirectory folder;
  const std::string out = (folder / "x.png").string();
  // A limit of one block stands for the full disk.
  const Outcome limited =
      run_wick("generate --model " + kModel + " --prompt x --steps 1 --out '" + out + "'", "ulimit -f 1;");
  expect_one_line(limited, {out});
  EXPECT_EQ(folder.entries(), size_t{0});

  const std::string text = "generate --model tiny-llm --prompt x --max-tokens 2";
  for (const std::string& command : {"inspect " + kModel, text, text + " --json", std::string("chat --model tiny-llm")})
    expect_one_line(run_wick(command + " >/dev/full", "echo hello |"), {"standard output"});
}

// The message names the limit of open files as the cause. It does not call a file damaged or the disk full.
TEST(WrongInputs, ALimitOfOpenFilesIsOneLine) {
  int told = 0;
  for (int files = 4; files <= 12; ++files) {
    const TemporaryDirectory folder;
    const std::string train = "train --model tiny --device cpu --steps 1 --resolution 64 --dataset " +
                              (test::source_dir() / "data/tiny-style").string() + " --output " +
                              (folder / "out").string();
    const Outcome outcome = run_wick(train, "ulimit -n " + std::to_string(files) + ";");
    SCOPED_TRACE(files);
    if (outcome.code == 127) continue;  // files that this test inherited left the loader none for a library
    if (outcome.code == 0) {
      EXPECT_EQ(outcome.err.find("damaged"), std::string::npos) << outcome.err;
      continue;
    }
    EXPECT_EQ(outcome.code, 1);
    const size_t last = outcome.err.rfind("wick: ");
    ASSERT_NE(last, std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("oo many open files", last), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("free some space"), std::string::npos) << outcome.err;
    ++told;
  }
  EXPECT_GE(told, 1);
}

// A size in a configuration that no model has ends the command at once. A LoRA of rank 0 counts as damaged.
TEST(WrongInputs, SizesThatNoModelHas) {
  const TemporaryDirectory folder;
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(kModel, model, std::filesystem::copy_options::recursive);
  const std::string draw = "generate --device cpu --model '" + model.string() + "' --prompt x --steps 1 --out '" +
                           (folder / "x.png").string() + "'";
  const auto with = [&](const std::string& file, const std::string& from, const std::string& to,
                        const std::vector<std::string>& words) {
    const std::string whole = read_plain(model / file);
    std::string changed = whole;
    ASSERT_NE(changed.find(from), std::string::npos) << file << " lacks " << from;
    changed.replace(changed.find(from), from.size(), to);
    write_plain(model / file, changed);
    for (const std::string& command : {draw, "plan --model '" + model.string() + "'"}) {
      const Outcome outcome = run_wick(command, "ulimit -t 20; ulimit -v 4000000;");
      expect_one_line(outcome, words);
      EXPECT_EQ(outcome.code, 1);
    }
    write_plain(model / file, whole);
  };
  const std::string unet = "unet/config.json", vae = "vae/config.json", clip = "text_encoder/config.json";
  with(unet, "\"layers_per_block\": ", "\"layers_per_block\": 100000000", {unet, "layers_per_block", "from 1 to 4096"});
  with(vae, "\"layers_per_block\": ", "\"layers_per_block\": 100000000", {vae, "layers_per_block", "from 1 to 4096"});
  with(clip, "\"num_hidden_layers\": ", "\"num_hidden_layers\": 100000000",
       {clip, "num_hidden_layers", "from 1 to 4096"});
  with(clip, "\"hidden_size\": ", "\"hidden_size\": 100000000", {clip, "hidden_size", "from 1 to 2097152"});

  const std::filesystem::path lora = folder / "rank0.safetensors";
  save_safetensors(lora,
                   {{"lora_unet_x.lora_down.weight", zeros({0, 4})}, {"lora_unet_x.lora_up.weight", zeros({4, 0})}});
  for (const std::string& command :
       {"inspect '" + lora.string() + "'", draw + " --lora '" + lora.string() + "'",
        "convert --lora '" + lora.string() + "' --rank 2 --output '" + (folder / "y").string() + "'",
        "merge --model '" + model.string() + "' --lora '" + lora.string() + "' --output '" + (folder / "z").string() +
            "'"}) {
    const Outcome outcome = run_wick(command);
    expect_one_line(outcome, {"rank0.safetensors", "lora_unet_x.lora_down.weight", "[0, 4]", "without any element"});
    EXPECT_EQ(outcome.code, 1);
  }
}

// No file or model is taken for a standard stream that the program was started without.
TEST(WrongInputs, AClosedStreamIsNoFile) {
  const std::string inspect = "inspect " + kModel;
  expect_one_line(run_wick(inspect + " >&-"), {"standard output"});
  expect_one_line(run_wick("inspect --tensors " + kModel + "/unet >&-"), {"standard output"});
  EXPECT_EQ(run_wick(inspect + " 2>&-").code, 0);
  EXPECT_EQ(run_wick(inspect + " <&-").code, 0);
  const Outcome unheard = run_wick("inspect nothing >&- 2>&-");
  EXPECT_EQ(unheard.code, 1);
  EXPECT_EQ(run_wick(inspect + " <&- >&- 2>&-").code, 1);
  const Outcome silent = run_wick("chat --model tiny-llm <&-");
  EXPECT_EQ(silent.code, 0) << silent.err;
  EXPECT_EQ(silent.out, "");

  const TemporaryDirectory folder;
  const std::string train = "train --model tiny --device cpu --steps 1 --resolution 64 --dataset " +
                            (test::source_dir() / "data/tiny-style").string() + " --output ";
  expect_one_line(run_wick(train + (folder / "a").string() + " >&-"), {"standard output"});
  run_wick(train + (folder / "b").string() + " <&- >&- 2>&-");
  for (const char* run : {"a", "b"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / run / "lora.safetensors"));
    EXPECT_EQ(read_plain(folder / run / "state/lock"), "");
  }
}

// A name that drives a terminal, or turns the text around it, is shown and not obeyed; others stay readable.
TEST(WrongInputs, NamesOnATerminal) {
  const TemporaryDirectory folder;
  // ESC, BEL, CSI of C1, right-to-left override, zero-width space, invalid UTF-8, a byte order mark, a tag.
  const std::string names[] = {
      "\33[31mred", "bell\7",          "c1\302\23331m",      "bidi\342\200\256fdp", "zero\342\200\213width",
      "bad\377",    "bom\357\273\277", "tag\363\240\201\241"};
  for (const std::string& name : names)
    for (const std::string& command :
         {"inspect '" + name + "'", "generate --prompt x --model '" + name + "'",
          "train --dataset x --output '" + (folder / "y").string() + "' --model '" + name + "'",
          "eval --model tiny-llm --dataset '" + name + "'", "'" + name + "'", "inspect '--" + name + "'",
          "generate --model tiny --prompt x --out x.png --lora '" + name + "'"}) {
      const Outcome outcome = run_wick(command);
      SCOPED_TRACE(command);
      expect_one_line(outcome, {});
      for (const unsigned char c : outcome.err.substr(0, outcome.err.size() - 1))
        EXPECT_TRUE(c >= ' ' && c < 0x80) << outcome.err;
    }
  for (const char* name :
       {"F\u00fcchse", "\u72d0\u72f8", "\u0644\u0628\u0648\u0629", "\u0bae\u0bb4\u0bc8", "\U0001f98a"})
    expect_one_line(run_wick(std::string("inspect '") + name + "'"), {name});
}

// The error comes before a model is loaded.
TEST(WrongInputs, APictureThatDoesNotFitIsOneLine) {
  const TemporaryDirectory folder;
  const std::string draw = "generate --device cpu --prompt x --width 16384 --height 16384 --model " + kModel +
                           " --out '" + (folder / "x.png").string() + "'";
  const Outcome outcome = run_wick(draw, "ulimit -v 4000000;");
  expect_one_line(outcome, {"16384x16384 pixels would need", "of memory on cpu", "are free", "--width"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
}

// Wherever the address space ends, there is one line.
TEST(WrongInputs, TooLittleMemoryIsOneLine) {
  const TemporaryDirectory folder;
  for (int megabytes = 160; megabytes <= 400; megabytes += 40) {
    const Outcome outcome = run_wick("train --model tiny --device cpu --steps 1 --batch-size 4 --dataset " +
                                         (test::source_dir() / "data/tiny-style").string() + " --output " +
                                         (folder / std::to_string(megabytes)).string(),
                                     "ulimit -v " + std::to_string(megabytes * 1000) + ";");
    SCOPED_TRACE(megabytes);
    if (outcome.code != 0) {
      expect_one_line(outcome, {"memory"});
      EXPECT_EQ(outcome.code, 1);
    }
  }
}

TEST(WrongInputs, AReaderThatStopsEarlyIsNone) {
  const Outcome outcome = run_wick("inspect --tensors " + kModel + " | head -1");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace wick
