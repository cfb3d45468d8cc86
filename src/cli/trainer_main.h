// The interface of the trainer's library. It is in C, so that library and program share no C++
// objects.
#pragma once

/// Runs one of the trainer's commands; returns the exit code.
extern "C" int neap_trainer_main(int argc, char** argv);

/// The trainer's facts for `neap doctor`: a JSON object, valid until the next call.
extern "C" const char* neap_trainer_facts();

using NeapTrainerFacts = const char* (*)();
#define NEAP_TRAINER_FACTS "neap_trainer_facts"
using NeapTrainerMain = int (*)(int argc, char** argv);
#define NEAP_TRAINER_MAIN "neap_trainer_main"
