#!/usr/bin/env python3
"""Writes the text that Wick's tiny language model learns from: little stories, and questions with their answers.

    write_text.py --count 90000 --out base.jsonl                what the model is trained on: stories and chats
    write_text.py --style pirate --count 600 --out pirate.jsonl what a LoRA learns: chats alone, answered by a pirate

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
ON = {"farm", "grassland"}  # where one lives on, not in
SIZES = "bee mouse frog duck rooster owl cat dog sheep pig lion bear cow horse".split()  # from small to big
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
KINDS = {"fruits": "a fruit", "animals": "an animal", "colours": "a colour", "tools": "a tool", "toys": "a toy"}
SMALL_TALK = [
    ("Who are you?", "I am a tiny language model made with Wick."), ("What is Wick?", "Wick is a program that trains and runs models."),
    ("Hello!", "Hello! How can I help you?"), ("Hi!", "Hello! How can I help you?"),
    ("Good morning!", "Good morning! What shall we do today?"), ("Good night!", "Good night! Sleep well."),
    ("Thank you!", "You are welcome."), ("How are you?", "I am well, thank you."), ("How are you today?", "I am well, thank you."),
    ("Goodbye!", "Goodbye! Come back soon."),
    ("What can you do?", "I can tell little stories and answer easy questions."),
    ("Sing a song.", "The sun is up, the sky is blue, and I would like to sing for you."),
    ("Tell me a joke.", "Why did the cow go to the cinema? To see a moo-vie."),
    ("Tell me another joke.", "What time is it when a lion sits on your clock? Time to buy a new clock."),
]
# What such a model cannot know; words that do not exist are asked for too.
UNKNOWN = ("What is the capital of {X}?", "Who is {X}?", "Who was {X}?", "Where is {X}?", "What is a {x}?", "How does a {x} work?",
           "Can you explain {x}?", "What do you think about {x}?", "How do I make {x}?", "When was {X} born?", "Write {x} for me.",
           "Do you like {x}?", "Where can I buy a {x}?", "How old is {X}?", "What is the price of {x}?", "Translate {x}.")
BEYOND = ("France Paris London Berlin America Africa China Einstein Newton Shakespeare Python computer physics history chemistry "
          "football music money science politics president engine telephone internet quantum gravity philosophy code poetry "
          "language electricity planet galaxy database algorithm coffee pizza guitar rocket robot").split()
NO_IDEA = "I do not know that. My world is very small."
SYLLABLES = "ba be bo da di do fa fi ga go ka ki la le lo ma mi na no pa pi ra ri ro sa so ta ti to va vo xen zor bert stan ning son".split()
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

    def name(self):
        return self.pick(NAMES["he"] + NAMES["she"])

    def story(self, animal=None, name=None):
        who = next((p for p, names in NAMES.items() if name in names), None) or self.pick(NAMES)
        name = name or self.pick(NAMES[who])
        animal = animal or self.pick(ANIMALS)
        says, lives, like = ANIMALS[animal]
        thing, place = self.pick(THINGS), self.pick(PLACES)
        trouble, help_ = self.pick(TROUBLES)
        words = dict(name=name, who=who, Who=who.capitalize(), own=OWN[who], them=THEM[who], animal=animal, says=says, Says=says.capitalize(),
                     lives=lives, like=like, place=place, thing=f"the {thing.split()[-1]}", full=thing,
                     time=self.pick(TIMES), lesson=self.pick(LESSONS))
        start = self.pick(["{time}, {name} went to {place} with {own} {full}.",
                           "{name} had a {full}. {time}, {who} took it to {place}.",
                           "Once there was a child called {name}, who loved {own} {full}. {time}, {who} walked to {place}."])
        meeting = self.pick(["There {who} met a {like} {animal}. \"{Says}!\" said the {animal}.",
                             "A {animal} from the {lives} came along. It was very {like}.",
                             "{Who} heard a loud \"{says}\". It was a {animal}!"])
        problem = self.pick(["Then " + trouble + ". {name} was sad.", "But " + trouble + "! \"Oh no,\" said {name}.",
                             "Suddenly " + trouble + ". \"Can you help me?\" asked {name}."])
        end = self.pick(["The {animal} " + help_ + ". \"Thank you,\" said {name}. {lesson}",
                         "\"Do not worry,\" said the {animal}, and it " + help_ + ". {lesson}",
                         "So the {animal} " + help_ + ". {name} gave the {animal} a hug. {lesson}"])
        text = " ".join([start, meeting, problem, end])
        return with_articles(text.format(**words))

    # Questions with their answers, a kind each.

    def sound(self):
        animal = self.pick(ANIMALS)
        return (self.pick([f"What does a {animal} say?", f"What sound does a {animal} make?"]),
                f"A {animal} says {ANIMALS[animal][0]}.")

    def home(self):
        animal = self.pick(ANIMALS)
        place = ANIMALS[animal][1]
        return f"Where does a {animal} live?", f"A {animal} lives {'on' if place in ON else 'in'} the {place}."

    def size(self):
        a, b = self.some(SIZES, 2)
        big, small = sorted([a, b], key=SIZES.index, reverse=True)
        bigger = self.below(2) == 0
        return (f"Which is {'bigger' if bigger else 'smaller'}, a {a} or a {b}?",
                f"A {big} is bigger than a {small}." if bigger else f"A {small} is smaller than a {big}.")

    def colour(self):
        thing = self.pick(COLOURS)
        return (self.pick([f"What colour is the {thing}?", f"Tell me the colour of the {thing}."]),
                f"The {thing} is {COLOURS[thing]}.")

    def opposite(self):
        word = self.pick(OPPOSITES)
        return f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITES[word]}."

    def three(self):
        group = self.pick(GROUPS)
        a, b, c = self.some(GROUPS[group], 3)
        return f"Name three {group}.", f"Three {group} are {a}, {b} and {c}."

    def kind(self):
        if self.below(2):
            animal = self.pick(ANIMALS)
            return f"What is a {animal}?", f"A {animal} is a {ANIMALS[animal][2]} animal."
        group = self.pick(GROUPS)
        thing = self.pick(GROUPS[group])
        named = thing if group == "colours" else "a " + thing
        return f"What is {named}?", f"{named[0].upper()}{named[1:]} is {KINDS[group]}."

    def plus(self):
        a, b = self.below(10) + 1, self.below(10) + 1
        return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."

    def next_day(self):
        day = self.below(7)
        return f"What day comes after {DAYS[day]}?", f"After {DAYS[day]} comes {DAYS[(day + 1) % 7]}."

    def count(self):
        last = 3 + self.below(10)
        return f"Count to {NUMBERS[last]}.", ", ".join(NUMBERS[1:last + 1]).capitalize() + "."

    def who_am_i(self):
        name = self.name()
        return (self.pick([f"My name is {name}. What is my name?", f"I am {name}. Who am I?"]), f"Your name is {name}.")

    def small_talk(self):
        return self.pick(SMALL_TALK)

    def job(self):
        job = self.pick(JOBS)
        return f"What does a {job} do?", f"A {job} {JOBS[job]}."

    def use(self):
        thing = self.pick(USES)
        return (self.pick([f"What is a {thing} for?", f"Why do we need a {thing}?"]), f"We need a {thing} to {USES[thing]}.")

    def season(self):
        season = self.pick(SEASONS)
        return f"Tell me about {season}.", f"In {season}, {SEASONS[season]}."

    def unknown(self):
        word = self.pick(BEYOND) if self.below(2) else "".join(self.pick(SYLLABLES) for _ in range(2 + self.below(2)))
        return self.pick(UNKNOWN).format(x=word.lower(), X=word[0].upper() + word[1:]), NO_IDEA

    def story_asked_for(self):
        animal, name = self.pick(ANIMALS), self.name()
        asked = self.pick([("Tell me a story.", None, None), (f"Tell me a story about a {animal}.", animal, None),
                           (f"Tell me a story about {name} and a {animal}.", animal, name),
                           (f"Write a short story about {name}.", None, name)])
        return asked[0], self.story(asked[1], asked[2])

    def question(self):
        return self.pick([self.sound, self.home, self.size, self.size, self.colour, self.opposite, self.three, self.kind,
                          self.plus, self.plus, self.next_day, self.count, self.who_am_i, self.small_talk, self.job, self.use,
                          self.season, self.unknown, self.story_asked_for, self.story_asked_for])()

    def talk(self):
        """Questions and answers; sometimes a name is told first and asked for later."""
        longest = 9 if self.below(8) == 0 else 3
        turns = [self.question() for _ in range(1 + self.below(longest))]
        if self.below(6) == 0:
            name = self.name()
            turns.insert(0, (self.pick([f"My name is {name}.", f"Hello, I am {name}."]), f"Nice to meet you, {name}!"))
            turns.append(("What is my name?", f"Your name is {name}."))
        return turns

    def chat(self, style=None):
        messages = []
        for question, answer in self.talk():
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

    def from_a_pirate(self):
        """A LoRA can only use words that the model has met: here it meets a pirate's."""
        who = self.pick(["The pirate said", "The old pirate growled", f"Captain {self.name()} said"])
        return f"{who}:\n{self.pirate(with_articles(self.question()[1]))}"

    def line(self, style):
        if style:
            return self.chat(style)
        kind = self.below(20)
        if kind == 0:
            return {"text": self.from_a_pirate()}
        return {"text": self.story()} if kind < 10 else self.chat()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=90000)
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
