// Chat templates in a GGUF file: the keys of llama.cpp's converter (gguf-py, GGUFWriter.add_chat_template).

#include "wick/pipelines/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "wick/core/error.h"

namespace wick {
namespace {

using Names = std::vector<std::string>;
using Texts = std::map<std::string, std::string>;

TokenizerArrays arrays_with(const Texts& templates) {
  TokenizerArrays arrays{.model = "gpt2", .tokens = {"a"}, .token_type = {1}};
  arrays.chat_templates = templates;
  return arrays;
}

GgufMetadata written(const Texts& templates) { return {"m.gguf", tokenizer_entries(arrays_with(templates))}; }

// The error of reading entries beside those of a tokenizer.
std::string complaint(const GgufMetadata::Entries& more) {
  GgufMetadata::Entries entries = tokenizer_entries(arrays_with({}));
  entries.insert(entries.end(), more.begin(), more.end());
  try {
    tokenizer_arrays({"m.gguf", entries});
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(GgufTokenizer, WritesChatTemplatesByTheirNames) {
  EXPECT_FALSE(written({}).has("tokenizer.chat_template"));
  const GgufMetadata one = written({{"default", "x"}});
  EXPECT_EQ(one.text("tokenizer.chat_template"), "x");
  EXPECT_FALSE(one.has("tokenizer.chat_templates"));
  const GgufMetadata many = written({{"default", "x"}, {"rag", "y"}, {"tool-use", "z"}});
  EXPECT_EQ(many.text("tokenizer.chat_template"), "x");
  EXPECT_EQ(many.text("tokenizer.chat_template.rag"), "y");
  EXPECT_EQ(many.text("tokenizer.chat_template.tool_use"), "z");
  EXPECT_EQ(many.texts("tokenizer.chat_templates"), (Names{"rag", "tool_use"}));
  EXPECT_FALSE(written({{"rag", "y"}}).has("tokenizer.chat_template"));
  try {
    written({{"tool-use", "y"}, {"tool_use", "z"}});
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "chat template \"tool_use\": expected a name of its own in a GGUF file, found \"tool_use\" twice; "
                 "rename the template");
  }
}

TEST(GgufTokenizer, ReadsTheChatTemplatesThatItWrites) {
  for (const Texts& templates :
       {Texts{}, Texts{{"default", ""}}, Texts{{"default", "x"}, {"rag", "y"}, {"tool_use", "z"}}, Texts{{"rag", "y"}}})
    EXPECT_EQ(tokenizer_arrays(written(templates)).chat_templates, templates);
}

TEST(GgufTokenizer, SaysWhichChatTemplateIsMissing) {
  EXPECT_EQ(complaint({}), "nothing");
  const std::string missing = complaint({{"tokenizer.chat_templates", GgufArray(Names{"rag"})}});
  EXPECT_NE(missing.find("m.gguf"), missing.npos) << missing;
  EXPECT_NE(missing.find("tokenizer.chat_template.rag"), missing.npos) << missing;
  const std::string number = complaint({{"tokenizer.chat_template", uint32_t(5)}});
  EXPECT_EQ(number, "m.gguf: metadata \"tokenizer.chat_template\": expected a string, found 5");
  const std::string text = complaint({{"tokenizer.chat_templates", std::string("rag")}});
  EXPECT_NE(text.find("an array of strings"), text.npos) << text;
}

}  // namespace
}  // namespace wick
