// The two kinds of checkpoint behind Checkpoint::open.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace quire::checkpoint {

// `path`: of the file, beside which the other parts of a split model lie. Errors: as Checkpoint::open, without the
// path.
Result<std::shared_ptr<const Checkpoint>> open_gguf(std::shared_ptr<const MappedFile> file,
                                                    const std::filesystem::path& path);

// A directory in Hugging Face's layout. Files in it may be symbolic links that stay in the directory or, in the layout
// of Hugging Face's cache (snapshots/<revision>/ beside blobs/), lead to the blobs of the same repository; a link to
// anywhere else is refused. Errors: as Checkpoint::open.
Result<std::shared_ptr<const Checkpoint>> open_directory(const std::filesystem::path& directory);

// The same without weights: `path` is the directory, or config.json in it. Random ones are made of what a model
// declares.
Result<std::shared_ptr<const Checkpoint>> open_dummy(const std::filesystem::path& path);

// A file whose weights are Python pickles, by its name: reading one runs the code in it.
bool is_pickle_name(const std::filesystem::path& path);
Status pickle_refused(const std::filesystem::path& path);

}  // namespace quire::checkpoint
