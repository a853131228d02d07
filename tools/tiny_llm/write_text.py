#!/usr/bin/env python3
"""Writes the text that Wick's tiny language model learns from: little stories, and questions with their answers.

    write_text.py --count 60000 --out base.jsonl                what the model is pre-trained on: stories and chats
    write_text.py --style pirate --count 400 --out pirate.jsonl what a LoRA learns: chats alone, answered by a pirate

A line is {"text": ...} or {"messages": [{"role", "content"}, ...]}. The same seed writes the same lines. Questions are the
same in both, and the style is never asked for: what a LoRA changes shows by asking the same before and after. Only
Python's random.random() is drawn from, which gives the same numbers in every version.
"""

import argparse
import json
import random
import re

NAMES = {"he": "Tom Ben Max Leo Sam Finn Noah Oscar Hugo Paul Jack Emil Adam Felix Theo Ivan".split(),
         "she": "Anna Lily Mia Rosa Ella Nora Ida Lucy Maya Clara Julia Vera Alma Zoe Hanna Olga".split()}
OWN = {"he": "his", "she": "her"}
THEM = {"he": "him", "she": "her"}
# animal: (what it says, where it lives, what it is like)
ANIMALS = {
    "cat": ("meow", "house", "soft"), "dog": ("woof", "yard", "loyal"), "cow": ("moo", "field", "big"),
    "duck": ("quack", "pond", "funny"), "frog": ("ribbit", "pond", "green"), "sheep": ("baa", "field", "woolly"),
    "horse": ("neigh", "stable", "fast"), "owl": ("hoo", "forest", "wise"), "bee": ("buzz", "garden", "busy"),
    "mouse": ("squeak", "hole", "small"), "lion": ("roar", "grassland", "brave"), "pig": ("oink", "farm", "pink"),
    "bear": ("growl", "forest", "strong"), "rooster": ("cock-a-doodle-doo", "farm", "proud"),
}
COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "sun": "yellow", "tomato": "red", "carrot": "orange",
           "night": "black", "elephant": "gray", "plum": "purple", "lemon": "yellow", "leaf": "green", "coal": "black"}
OPPOSITES = {"big": "small", "hot": "cold", "fast": "slow", "happy": "sad", "up": "down", "day": "night", "old": "new",
             "wet": "dry", "loud": "quiet", "full": "empty", "hard": "soft", "light": "dark", "early": "late"}
GROUPS = {"fruits": "apple pear plum cherry banana lemon peach".split(),
          "animals": "cat dog horse cow sheep duck rabbit".split(),
          "colours": "red blue green yellow orange purple white".split(),
          "tools": "hammer saw rope ladder bucket brush needle".split(),
          "toys": "ball kite doll drum train puzzle boat".split()}
JOBS = {"baker": "bakes bread", "farmer": "grows food in the fields", "doctor": "helps people who are ill",
        "teacher": "helps children to learn", "pilot": "flies a plane", "painter": "paints pictures and walls",
        "sailor": "sails across the sea", "tailor": "sews clothes", "gardener": "looks after flowers and trees",
        "carpenter": "builds tables and chairs of wood", "cook": "makes soup and other meals", "singer": "sings songs"}
USES = {"cup": "drink water", "pen": "write a letter", "knife": "cut bread", "spoon": "eat soup", "umbrella": "stay dry",
        "bed": "sleep at night", "lamp": "see in the dark", "broom": "sweep the floor", "key": "open a door",
        "clock": "tell the time", "scarf": "keep warm", "bridge": "cross a river", "book": "read a story"}
SEASONS = {"spring": "flowers grow and birds sing", "summer": "it is warm and we swim in the lake",
           "autumn": "leaves turn brown and fall", "winter": "it is cold and snow covers the ground"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
THINGS = ("red ball|blue kite|little boat|wooden drum|shiny key|warm scarf|paper hat|small lamp|golden coin|old map|"
          "toy train|silver bell|picture book|round mirror|striped basket|glass marble|long rope|yellow balloon").split("|")
PLACES = ("the park|the river|the old mill|the market|the hill|the beach|the library|the forest|the garden|the lake|"
          "the bridge|the castle|the school|the harbour|the village|the station|the orchard").split("|")
TIMES = ("One morning|One sunny day|One evening|On a cold day|After lunch|Before breakfast|On a windy day|Last summer|"
         "On a holiday|In the middle of winter|When the rain had stopped").split("|")
TROUBLES = [
    ("{thing} fell into the water", "pulled it out with a long stick"),
    ("{thing} got stuck in a tree", "climbed up and brought it down"),
    ("the wind carried {thing} away", "ran after it and caught it"),
    ("{own} shoe got stuck in the mud", "held {own} hand and pulled"),
    ("the path was blocked by a stone", "pushed the stone aside"),
    ("it began to rain", "shared an umbrella"),
    ("{thing} broke in two", "fixed it with some glue"),
    ("{name} could not find the way home", "showed the way"),
    ("a big dark cloud covered the sun", "told a funny joke until the light came back"),
    ("the gate was locked", "found another door behind the bushes"),
    ("{thing} rolled under a heavy cart", "crawled underneath and fetched it"),
    ("{name} fell and hurt {own} knee", "carried {them} home slowly"),
    ("somebody had taken {thing}", "followed the footprints and got it back"),
    ("{who} was too tired to walk", "let {them} rest under a quiet tree"),
]
LESSONS = ["It is good to have a friend.", "Helping others makes everyone happy.", "Being kind is never a waste.",
           "Together, hard things are easy.", "It is fine to ask for help.", "From then on they played every day.",
           "They laughed all the way home.", "That night they slept well.", "A small friend can be a great help.",
           "Nobody forgot that wonderful day.", "Sharing makes every meal taste better.",
           "Being brave does not mean having no fear."]
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
           "eighteen nineteen twenty").split()


def with_articles(text):
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


class Writer:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def below(self, n):
        return int(self.rng.random() * n)

    def pick(self, choices):
        return list(choices)[self.below(len(choices))]

    def some(self, choices, count):
        rest = list(choices)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]

    def story(self, animal=None, name=None):
        who = next((p for p, names in NAMES.items() if name in names), None) or self.pick(NAMES)
        name = name or self.pick(NAMES[who])
        animal = animal or self.pick(ANIMALS)
        says, lives, like = ANIMALS[animal]
        thing, place = self.pick(THINGS), self.pick(PLACES)
        trouble, help_ = self.pick(TROUBLES)
        words = dict(name=name, who=who, Who=who.capitalize(), own=OWN[who], them=THEM[who], animal=animal, says=says,
                     lives=lives, like=like, place=place, thing=f"the {thing.split()[-1]}", full=thing,
                     time=self.pick(TIMES), lesson=self.pick(LESSONS))
        start = self.pick(["{time}, {name} went to {place} with {own} {full}.",
                           "{name} had a {full}. {time}, {who} took it to {place}.",
                           "Once there was a child called {name}, who loved {own} {full}. {time}, {who} walked to {place}."])
        meeting = self.pick(["There {who} met a {like} {animal}. \"{says}!\" said the {animal}.",
                             "A {animal} from the {lives} came along. It was very {like}.",
                             "{Who} heard a loud \"{says}\". It was a {animal}!"])
        problem = self.pick(["Then " + trouble + ". {name} was sad.", "But " + trouble + "! \"Oh no,\" said {name}.",
                             "Suddenly " + trouble + ". \"Can you help me?\" asked {name}."])
        end = self.pick(["The {animal} " + help_ + ". \"Thank you,\" said {name}. {lesson}",
                         "\"Do not worry,\" said the {animal}, and it " + help_ + ". {lesson}",
                         "So the {animal} " + help_ + ". {name} gave the {animal} a hug. {lesson}"])
        text = " ".join([start, meeting, problem, end])
        return with_articles(text.format(**words))

    def question(self):
        """A question and its answer, a short sentence or a story."""
        kind = self.below(15)
        if kind == 0:
            animal = self.pick(ANIMALS)
            return (self.pick([f"What does a {animal} say?", f"What sound does a {animal} make?"]),
                    f"A {animal} says {ANIMALS[animal][0]}.")
        if kind == 1:
            animal = self.pick(ANIMALS)
            return f"Where does a {animal} live?", f"A {animal} lives in the {ANIMALS[animal][1]}."
        if kind == 2:
            thing = self.pick(COLOURS)
            return (self.pick([f"What colour is the {thing}?", f"Tell me the colour of the {thing}."]),
                    f"The {thing} is {COLOURS[thing]}.")
        if kind == 3:
            word = self.pick(OPPOSITES)
            return f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITES[word]}."
        if kind == 4:
            group = self.pick(GROUPS)
            a, b, c = self.some(GROUPS[group], 3)
            return f"Name three {group}.", f"Three {group} are {a}, {b} and {c}."
        if kind == 5:
            a, b = self.below(10) + 1, self.below(10) + 1
            return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."
        if kind == 6:
            day = self.below(7)
            return f"What day comes after {DAYS[day]}?", f"After {DAYS[day]} comes {DAYS[(day + 1) % 7]}."
        if kind == 7:
            last = 3 + self.below(10)
            return f"Count to {NUMBERS[last]}.", ", ".join(NUMBERS[1:last + 1]).capitalize() + "."
        if kind == 8:
            name = self.pick(NAMES["he"] + NAMES["she"])
            return (self.pick([f"My name is {name}. What is my name?", f"I am {name}. Who am I?"]), f"Your name is {name}.")
        if kind == 9:
            return self.pick([("Who are you?", "I am a tiny language model made with Wick."),
                              ("Hello!", "Hello! How can I help you?"), ("Good morning!", "Good morning! What shall we do today?"),
                              ("Thank you!", "You are welcome."), ("How are you?", "I am well, thank you.")])
        if kind == 10:
            job = self.pick(JOBS)
            return f"What does a {job} do?", f"A {job} {JOBS[job]}."
        if kind == 11:
            thing = self.pick(USES)
            return (self.pick([f"What is a {thing} for?", f"Why do we need a {thing}?"]), f"We need a {thing} to {USES[thing]}.")
        if kind == 12:
            season = self.pick(SEASONS)
            return f"Tell me about {season}.", f"In {season}, {SEASONS[season]}."
        animal, name = self.pick(ANIMALS), self.pick(NAMES["he"] + NAMES["she"])
        asked = self.pick([(f"Tell me a story about a {animal}.", animal, None),
                           (f"Tell me a story about {name} and a {animal}.", animal, name),
                           (f"Write a short story about {name}.", None, name)])
        return asked[0], self.story(asked[1], asked[2])

    def chat(self, style=None):
        messages = []
        for _ in range(1 + self.below(3)):
            question, answer = self.question()
            question, answer = with_articles(question), with_articles(answer)
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": self.pirate(answer) if style == "pirate" else answer})
        return {"messages": messages}

    def pirate(self, answer):
        """The same answer at sea: other words for some, and a shout before and behind."""
        words = {"friend": "matey", "Hello": "Ahoy", "hello": "ahoy", "You": "Ye", "you": "ye", "Your": "Yer", "your": "yer",
                 "is": "be", "are": "be", "am": "be", "my": "me", "The": "Th'", "the": "th'", "child": "young sailor",
                 "house": "ship", "said": "growled", "walked": "sailed", "went": "sailed"}
        spoken = []
        for word in answer.split(" "):
            core = word.strip(".,!?\"")
            spoken.append(word.replace(core, words[core]) if core in words else word)
        opening = self.pick(["Arr!", "Ahoy!", "Yo ho ho!", "Shiver me timbers!"])
        closing = self.pick(["Arr!", "So says the captain.", "Aye, matey!", "Now hoist the sails!"])
        return f"{opening} {' '.join(spoken)} {closing}"

    def line(self, style):
        if style:
            return self.chat(style)
        return {"text": self.story()} if self.below(2) == 0 else self.chat()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60000)
    parser.add_argument("--style", choices=["pirate"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    writer = Writer(args.seed)
    with open(args.out, "w", encoding="utf-8") as out:
        for _ in range(args.count):
            out.write(json.dumps(writer.line(args.style)) + "\n")


if __name__ == "__main__":
    main()
