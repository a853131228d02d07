// The configs of the models that Wick knows by name, as their repositories have them: enough to plan a run without any
// of their files. JSON by component, without the keys that no network of Wick reads.
//
// Sources: diffusers' converters and class defaults, transformers' configs of CLIP and T5, Stability's sd3.5 and Black
// Forest Labs' flux (util.py).
#pragma once

#include <map>
#include <string>

namespace wick {

using ComponentConfigs = std::map<std::string, std::string>;

ComponentConfigs sdxl_configs();
ComponentConfigs flux_configs(bool guidance);  // dev and its kin; else schnell
ComponentConfigs sd3_medium_configs();
ComponentConfigs sd35_medium_configs();
ComponentConfigs sd35_large_configs();

}  // namespace wick
