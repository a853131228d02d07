"""Small templates for chat_templates.py: each has a line, with its output or its failure in transformers' environment."""

# What every case may use.
VARIABLES = {
    "s": "Hello, World", "t": "  été Ünï 日本 😀\n", "empty": "", "n": 7, "neg": -3, "x": 2.5, "yes": True, "no": False,
    "nil": None, "words": ["b", "a", "C", "a"], "nums": [3, 1, 2], "nested": [[1, 2], [3]],
    "d": {"b": 1, "a": [1, 2], "items": "own", "_hidden": 5, "é": None},
    "users": [{"name": "Zoe", "age": 30, "city": {"zip": 9}}, {"name": "adam", "age": 25, "city": {"zip": 5}},
              {"name": "Bob", "age": 30}],
}

# Expressions, written {{ … }}.
EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7 / 2, 6 / 3, 1 / 3
2 ** 10, 2 ** -1, 2 ** 0.5, -2 ** 2, 2 ** 3 ** 2
7.5 // 2, -7.5 // 2, 7.5 % 2, -7.5 % 2, 7.5 % -2
1e3, 1.5e-7, 1E16, 123456789012345678.0, 0.1 + 0.2, 1e22, 5e-324, 1.0, -0.0
0x1F, 0b101, 0o17, 1_000_000, 10_0.5, 00
1 / 0
1 // 0
1.0 % 0
9223372036854775807
- 9223372036854775807 - 1
-n, +n, -x, -yes, +no
- s
+ nil
not n, not empty, not nil, not []
1 == 1.0, true == 1, '1' == 1, nil == none, [1] == (1,), [1, 2] == [1, 2.0], {'a': 1} == {'a': 1.0}
1 != 2, 1 < 2 < 3, 1 < 3 < 2, 1 <= 1, 2 >= 3, 'a' < 'b', [1, 2] < [1, 3], (1,) < (1, 0), 'é' > 'z'
1 < 'a'
nil < 1
[1] < [none]
1 in [1, 2], 'a' in 'cat', 'b' in d, 'z' not in d, 3 in nums, 1 in (1,), nil in [nil]
1 in 'abc'
1 in 5
'x' in nil
undefined_name
undefined_name.x
undefined_name['x']
undefined_name()
undefined_name + 1
undefined_name == undefined_other, undefined_name == none, undefined_name in [1]
undefined_name < 1
1 in undefined_name
undefined_name | length, undefined_name | list, undefined_name | upper, undefined_name | join('-'), undefined_name | first
undefined_name | int
undefined_name | float
undefined_name | tojson
undefined_name | abs
undefined_name ~ 'x' ~ nil
undefined_name | trim, undefined_name | items | list, undefined_name | string, undefined_name | default('d'), undefined_name | d
d.missing, d['missing'], d.missing is defined, d.a is defined
d.missing.deeper
d.missing | default('none here')
nil.x
nil['x'] is defined
n.x
s.nothing | default('-')
1 and 2, 0 and 2, 1 or 2, 0 or '', nil or [] or {}
true and false or true, not true == false
1 if yes else 2, 1 if no else 2, 1 if no, (1 if no) is defined
'a' if no else 'b' if no else 'c'
s[0], s[-1], s[1:4], s[::2], s[::-1], s[10:100], s[5:2], s[-3:], s[:-9], t[2], t[2:7], t[::-3], s[100], s[-100]
s[1.5]
s['x'], s['upper']()
nums[0], nums[-1], nums[1:], nums[::-1], nums[5], nums['x'], nums[true]
nums[:1:0]
nums['a':]
nested[0][1], nested[1][0], nested.0.1, nested.1
d.a, d['a'], d.a[0], d['a'][1], d['items'], d.items(), d.get('a'), d.get('q'), d.get('q', 3), d.keys(), d.values()
d._hidden, d['_hidden'], d.__class__, s.__class__, s['__class__'], d.é
d.copy()['b']
d.pop('a')
d.update({'z': 1})
d.clear()
d.setdefault('a', 1)
nums.append(4)
nums.sort()
nums.pop is defined, nums.index(2), nums.count(3), nums.copy()
nums.index(9)
(1, 2, 1).count(1), (1, 2).index(2)
'a' 'b' "c", 'it\'s', "q\"q", 'tab\tnl\n', '\x41\u00e9\101\q\\'
[1, 'a', none, true, 1.5, [2], (3,), {'k': 'v'}, ()]
{'a': 1, 2: 'b', none: 3, true: 4, 1.5: 5, (1, 2): 6}
{1: 'a', true: 'b', 1.0: 'c'}
{[1]: 2}
{{'a': 1}: 2}
['it\'s', "q\"", "both'\"", 'é', '\n\t\\', '\x00\x7f\u200b', '😀', '\xa0']
[1, 2, ], (1, 2, ), {'a': 1, }, (1), (1,), ()
[1] + [2], (1,) + (2,), 'a' + 'b', [0] * 3, 'ab' * 2, 2 * 'x', 'a' * 0, 'a' * -1, (1,) * 2, true + true
[1] + (2,)
'a' + 1
1 + 'a'
'a' - 'b'
nil + 1
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] ~ undefined_name
'%s and %d' % ('x', 3), '%s' % 'x', '%s' % none, '%05.1f|%-5s|%+d|%x|%X|%o|%e|%g|%%|%c|%r' % (3.14159, 'ab', 5, 255, 255, 8, 12345.678, 0.0001, 'z', 'q')
'%(a)s %(b)d' % {'a': 'A', 'b': 3}
'%s %s' % 'x'
'%d' % 'x'
'%s' % (1, 2)
'%' % 1
'%5s|%-5d|% d|%#x|%.2s|%10.3e' % ('a', 3, 4, 255, 'abc', 12.5)
'{} {}'.format(1, 'a'), '{0}{1}{0}'.format('x', 'y'), '{a}-{b}'.format(a=1, b=2), '{{}}'.format(), '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:d} {:05d} {:+d} {:x} {:#x} {:b} {:,} {:_}'.format(5, 42, 3, 255, 255, 5, 1234567, 1234567)
'{:.2f} {:10.3f} {:e} {:g} {:%} {:.1%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25, 0.125)
'{!r} {!s}'.format('a', 'b'), '{0[1]} {1[k]} {2.k}'.format([1, 2], {'k': 'v'}, {'k': 'w'}), '{:{}}|'.format('x', 5)
'{}'.format()
'{'.format(1)
'{:d}'.format('x')
'{:.3}|{:.3}|{}'.format('abcdef', 3.14159, 1e20)
'{a}'.format_map({'a': 1})
s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase(), t.upper(), t.title(), t.strip(), 'straße'.upper(), 'ŉ'.upper(), 'ΑΣ ΑΣΑ'.lower(), 'ǆ'.title(), 'İ'.lower(), "they're bill's".title()
t.strip() | length, t | length, t.strip('\n '), 'xxaxx'.strip('x'), 'xxaxx'.lstrip('x'), 'xyaxy'.rstrip('yx'), 'éaé'.strip('é'), '\x1c a \u3000'.strip()
s.split(), s.split(','), s.split('o', 1), s.split(maxsplit=0), ' a  b '.split(), ' a  b '.split(' '), 'a,b,c'.rsplit(',', 1), ' a b c '.rsplit(None, 1), ' a b c '.split(none, 1), ''.split(), ''.split(','), s.split(sep='l', maxsplit=1)
s.split('')
'a\nb\r\nc\rd\x0be\x85f\u2028'.splitlines(), 'a\nb\n'.splitlines(true), ''.splitlines(), '\n'.splitlines()
s.startswith('He'), s.startswith(('x', 'He')), s.endswith('ld'), s.endswith(('x',)), s.startswith('ell', 1), s.startswith(''), s.endswith('o', 0, 5), s.startswith('', 20)
s.startswith(['He'])
s.startswith(1)
s.replace('l', 'L'), s.replace('l', 'L', 1), s.replace('', '-'), 'aaa'.replace('aa', 'b'), s.replace('x', 'y'), 'ab'.replace('', '-', 2), ''.replace('', 'x'), 'é'.replace('', '.')
s.find('o'), s.rfind('o'), s.find('z'), s.index('o'), s.count('l'), s.count(''), t.find('日'), s.find('o', 5), s.find('o', -4), s.rfind('o', 0, 5), 'é日é'.rfind('é'), s.find('', 12), s.find('', 13)
s.index('z')
', '.join(['a', 'b']), ''.join([]), '-'.join('abc'), '-'.join({'x': 1, 'y': 2})
', '.join([1, 2])
'abc'.removeprefix('a'), 'abc'.removesuffix('bc'), 'abc'.removeprefix('x'), 'a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'abc'.partition('x'), 'abc'.rpartition('x')
'5'.isdigit(), '²'.isdigit(), '½'.isnumeric(), 'a1'.isalnum(), 'ab'.isalpha(), ' \n'.isspace(), ''.isspace(), 'AB'.isupper(), 'aB'.islower(), '1a'.islower(), 'abc'.isascii(), 'é'.isascii(), 'a_1'.isidentifier(), '1a'.isidentifier(), '\n'.isprintable(), '५'.isdecimal(), '日本'.isalpha()
'a'.center(5), 'ab'.center(5, '*'), 'a'.ljust(3, '.'), 'a'.rjust(3), '-5'.zfill(4), '42'.zfill(1), 'a\tb'.expandtabs(4), 'abc'.center(6, '-')
'a'.center(5, 'xx')
'Straße'.casefold() is defined
d.get is callable, s.upper is callable
s.upper(1)
s.nothing()
5()
range(3), range(1, 4) | list, range(5, 0, -2) | list, range(0) | list, range(3)[1], range(3)[-1], range(10)[10], range(3) | length, 2 in range(3)
range(0, 1, 0)
range(100001)
range('a')
dict(a=1, b=2), dict([('a', 1)]), dict({'x': 1}, y=2), dict()
dict([1])
namespace(a=1).a, namespace(a=1).b is defined, namespace({'q': 2}).q, namespace(a=1)['a'], namespace(a=1, b='x')
namespace(_a=1)
cycler('a', 'b').next(), cycler(1).current
cycler()
joiner('x')()
raise_exception('no: ' ~ n)
raise_exception()
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y %H:%M:%S %% %j %A'), strftime_now('plain'), strftime_now('%-d/%-m %B %y %I %p')
loop is defined, range is defined, caller is defined, varargs is defined
n is odd, n is even, 4 is even, n is divisibleby(7), n is divisibleby 3, 0 is odd
'a' is odd
n is divisibleby(0)
n is number, x is number, yes is number, s is number, n is integer, yes is integer, x is integer, x is float, n is float
yes is boolean, n is boolean, yes is true, no is false, 1 is true, n is true
nil is none, n is none, undefined_name is none, undefined_name is undefined, n is defined
s is string, n is string, d is mapping, nums is mapping, nums is sequence, d is sequence, s is sequence, n is sequence, nums is iterable, s is iterable, n is iterable, nil is iterable, (1,) is sequence, undefined_name is iterable, undefined_name is sequence, range(2) is sequence, d.items() is sequence, d.items() is iterable
'abc' is lower, 'ABC' is upper, 'Abc' is lower, '1' is lower, 5 is upper
n is eq 7, n is equalto 7, n is ne 3, n is lt 8, n is le 7, n is gt 3, n is greaterthan 3, n is ge 7, n is lessthan 9
1 is in [1, 2], 'a' is in 'abc', n is sameas 7, nil is sameas none, yes is sameas true, [1] is sameas [1]
'upper' is filter, 'nope' is filter, 'odd' is test, 'nope' is test, s is escaped, (s | safe) is escaped
s is callable, range is callable, undefined_name is callable
n is not odd, n is not none, not n is none, s is not string, undefined_name is not defined
1 is nope
n is defined and n > 3 or false
-5 | abs, 5.5 | abs, -5 | abs + 1, (-5) | abs, -x | abs, true | abs
'a' | abs
[1, 2, 3, 4, 5] | batch(2) | list, [1, 2, 3] | batch(2, 'x') | list, [] | batch(2) | list, [1, 2] | batch(1) | map('first') | list
[1, 2, 3, 4, 5] | slice(2) | list, [1, 2, 3, 4, 5] | slice(3, 'x') | list, [1] | slice(3) | list
[1] | slice(0) | list
s | capitalize, 'ÉCOLE été' | capitalize, 5 | capitalize, 'a' | center(5) | tojson, 'ab' | center(width=7)
words | count, s | count, d | length, (1, 2) | length
5 | length
nil | length
nil | default('x'), nil | default('x', true), '' | default('e', boolean=true), 0 | d(1), no | default('f', true), undefined_name | default
d | dictsort, {'b': 1, 'A': 2, 'c': 0} | dictsort, {'b': 1, 'A': 2} | dictsort(true), {'b': 1, 'A': 2} | dictsort(by='value'), {'b': 1, 'a': 2} | dictsort(reverse=true), {'b': 1, 'a': 2} | dictsort(false, 'value', true)
d | dictsort(by='x')
nums | dictsort
{'a': 1, 1: 2} | dictsort
'<a href="x">\'&' | e, '<' | escape ~ '<', ('<' | e) + '<', '<' | e | e, '<' | forceescape, ('<' | e) | string, [('<' | e)], ('<' | safe) + '>' , 'x' | safe | upper, ('<' | e) * 2
nums | first, words | last, [] | first, [] | last is defined, s | first, s | last, d | first, d | last, [] | first is undefined, range(3) | last
5 | first
'3.5' | float, 'x' | float, 'x' | float(1.5), 3 | float, nil | float, '1e3' | float, ' 2 ' | float, '1_0.5' | float, [] | float, yes | float
'inf' | float
'-Infinity' | float
'nan' | float
n is == 7
'1e999' | float | int
users | selectattr('city.zip', 'lt', 9) | list | length
'42' | int, '42.9' | int, 'x' | int, 'x' | int(5), 3.9 | int, -3.9 | int, nil | int, ' 7 ' | int, '0x1A' | int(base=16), '1A' | int(0, 16), '0b11' | int(0, 2), '1_000' | int, '+5' | int, '-5' | int, '' | int, [] | int, yes | int, '1e2' | int, '0x1A' | int, '7' | int(base=0), '0o17' | int(0, 0)
'%s-%d' | format('a', 3), '%(x)s' | format(x=5), '%.2f' | format(1)
'%s' | format(1, x=2)
users | groupby('age') | map(attribute='grouper') | list, users | groupby('age') | length, users | groupby('city.zip', default=0) | list | length
users | groupby('name') | map('first') | list, (users | groupby('age'))[0].list | map(attribute='name') | join(','), ['b', 'B', 'a'] | groupby(0) | list
'a\nb\n\nc' | indent, 'a\nb' | indent(2), 'a\nb' | indent(2, true), 'a\n\nb' | indent(2, blank=true), 'a\nb' | indent('> '), '' | indent, 'a\n' | indent, 'a\r\nb' | indent(1, first=true), '\n' | indent
5 | indent
d | items | list, d | items | length
nums | items | list
nums | join, nums | join(', '), words | join('-'), users | join(', ', attribute='name'), [] | join('x'), s | join('.'), [1, none, true, undefined_name] | join(','), nums | join(1), d | join(' '), [[1], 'a'] | join
5 | join
s | list, nums | list, d | list, d.items() | list, (1, 2) | list, range(2) | list
5 | list
nums | map('string') | list, users | map(attribute='name') | list, users | map(attribute='city.zip', default='?') | list, words | map('upper') | join(' '), words | map('replace', 'a', 'X') | list, nested | map('sum') | list, users | map(attribute='city') | list | length, nested | map(attribute=0) | list, [] | map('nope') | list, nums | map('default', 5) | list, ['1', '2'] | map('int') | sum
nums | map | list
nums | map('nope') | list
nums | map(attribute='x', bad=1) | list
nums | map('upper') | first, nums | map('string') | length
(nums | map('string')) is sequence, (nums | map('string')) is iterable, true if [] | map('string') else false
nums | max, nums | min, words | max, words | min, words | min(case_sensitive=true), users | max(attribute='age') | string, [] | max is defined, [1, 2.5] | max, 'hello' | max, [(1, 2), (1, 3)] | max
[1, 'a'] | max
nums | reject('odd') | list, nums | select('odd') | list, [0, 1, '', none] | select | list, [0, 1, ''] | reject | list, nums | select('>', 1) | list, nums | select('in', [1, 2]) | list, users | selectattr('age', 'equalto', 30) | map(attribute='name') | list, users | rejectattr('city') | map(attribute='name') | list, users | selectattr('missing', 'defined') | list, users | rejectattr('name', '==', 'Bob') | list | count, words | select('equalto', 'a') | first, words | reject('in', 'ab') | list
nums | select('nope') | list
users | selectattr | list
nums | select('divisibleby') | list
s | replace('l', 'L'), s | replace('l', 'L', 2), 5 | replace('5', '6'), nil | replace('None', 'x'), 'aXa' | replace('a', 1), 'abc' | replace('', '-', 1)
nums | reverse | list, s | reverse, d | reverse | list, (1, 2) | reverse | list, range(3) | reverse | list, nums | reverse | first, [] | reverse | list, t | reverse
5 | reverse
nums | reverse | length
2.5 | round, 3.5 | round, 2.675 | round(2), 1234.5678 | round(-2), 2.1 | round(method='ceil'), 2.9 | round(0, 'floor'), 42 | round, 2.345 | round(1, 'ceil'), -2.5 | round, 15 | round(-1), 25 | round(-1), 1e20 | round, 0.5 | round | int, 2.5 | round(1)
2.5 | round(method='x')
'a' | round
words | sort, words | sort(reverse=true), words | sort(case_sensitive=true), users | sort(attribute='name') | map(attribute='name') | list, users | sort(attribute='age,name') | map(attribute='name') | list, users | sort(true, attribute='age') | map(attribute='name') | list, d | sort, 'hello' | sort | join, [[2, 1], [1, 3]] | sort, [(1, 'b'), (1, 'a')] | sort(attribute='1')
[1, 'a'] | sort
[none, 1] | sort
nums | string, nil | string, x | string, s | string | upper, d | string
nums | sum, [] | sum, [1.5, 2] | sum, users | sum(attribute='age'), nums | sum(start=10), [[1], [2]] | sum(start=[]), [true, true] | sum
['a', 'b'] | sum
['a'] | sum(start='')
'hello world-wide (web) [x] {y} <z>' | title, "it's o'clock" | title, 'éCOLE' | title, 5 | title
d | tojson, nums | tojson, s | tojson, t | tojson, nil | tojson, yes | tojson, x | tojson, (1, 2) | tojson, {1: 2, none: 3, true: 4, 1.5: 5} | tojson, [] | tojson, {} | tojson, '<>&\'"/\\' | tojson, '\x00\x1f\x7f\u2028\b\f' | tojson, 1e400 | tojson, 1e16 | tojson, -0.0 | tojson
d | tojson(indent=2), nested | tojson(indent=1), [] | tojson(indent=2), {} | tojson(indent=2), [[], {}] | tojson(indent=2), nums | tojson(indent=0), nums | tojson(indent='--'), d | tojson(2)
t | tojson(ensure_ascii=true), '\x7f' | tojson(true), '😀é' | tojson(ensure_ascii=true), {'é': 1} | tojson(ensure_ascii=true)
d | tojson(separators=(',', ':')), nums | tojson(indent=1, separators=[' ,', ': ']), d | tojson(sort_keys=true), {'b': {'d': 1, 'c': 2}, 'a': 0} | tojson(indent=1, sort_keys=true)
{'a': 1, 2: 3} | tojson(sort_keys=true)
{(1, 2): 3} | tojson
range(2) | tojson
d.keys() | tojson
nums | map('string') | tojson
namespace() | tojson
nums | tojson(indent=1, bad=2)
t | trim, 'xxaxx' | trim('x'), 5 | trim, nil | trim, '  a ' | trim | length
s | truncate(8), s | truncate(8, true), s | truncate(5, true, leeway=0), s | truncate(9, false, '…', 0), s | truncate, 'foo bar baz qux' | truncate(9), 'foo bar baz qux' | truncate(11), 'foo bar baz qux' | truncate(11, false, '...', 0), 'foobarbazquxx' | truncate(6, leeway=0)
s | truncate(2)
words | unique | list, [1, 1.0, true, 2] | unique | list, words | unique(case_sensitive=true) | list, users | unique(attribute='age') | map(attribute='name') | list, ['a', 'A'] | unique | list, 'hello' | unique | join
[[1], [1]] | unique | list
'a b/c?d=é&e' | urlencode, {'a b': 1, 'c/d': 'é'} | urlencode, [('x', 'y z')] | urlencode, 5 | urlencode, '~-_.' | urlencode
'one two, three-four it\'s été_x 5' | wordcount, '' | wordcount
s | upper | lower | title | trim | length
s | nope
s | upper('x')
s | replace('a')
d | attr('items') is callable, d | attr('b') is defined, s | attr('upper') is defined
nums | sort | reverse | list | first
s|upper~'x', 'a' ~ 'b' | upper, ('a' ~ 'b') | upper, -1 | abs, 1 + 2 | string | length
(nums | sort)[0], (words | map('upper') | list)[1], [1, 2, 3][1:] | length, 'abc'[1] | upper, {'a': 'b'}['a'] | upper, 'x'.upper().lower(), (1, 2)[0], 'a b'.split()[1].upper()
nums | length > 2 and words | length < 9
'a' in words and 'z' not in words, not 'a' in words, 1 in nums == true
loop.index
1 .x
s.0, nested.0.0
{'a': 1}.a, {'a': {'b': 2}}.a.b, [1, 2].1
none.__class__, ().__class__, 'a'['__len__']
d | tojson | length, d | list | tojson
true, True, false, False, none, None
1 if undefined_name else 2, 'x' if undefined_name is defined and undefined_name.y else 'z'
(none or {}).get('x', 'y'), ([] or [5])[0]
[1, 2] | tojson ~ 'x', '[' ~ nums | join(',') ~ ']'
'\u00e9' == 'é', '日本'[1], '日本' | length, '😀' | length, '😀'[0], 'e\u0301' | length
d.items() | list | length, d.keys() | list, d.values() | list | first, 'b' in d.keys(), d.keys() | first, d.items()[0] is defined
1 2
[1 2]
{'a' 1}
(1
a.b.
'unclosed
s | 
s is
1 +
not
if
1 $ 2
s.upper(
f(a=1, 2)
s.split(*[',']), s.replace(*['l', 'L'], **{}), dict(**{'q': 1}), s.split(**{'sep': 'o'})
s.split(*5)
dict(**5)
dict(a=1, **{'a': 2})
''.join(['a'] * 3), ('-' * 3).split('-'), ([1, 2] * 2)[3]
"a" "b" | upper, ("x" if yes) ~ ("y" if no)
nums is iterable and nums is not string and nums is not mapping
""".strip("\n")

# Whole templates: a Python list of strings, so that white space is exact.
TEMPLATES = [
    "", "\n", "a\n", "a\n\n", "\na", "a\r\nb\rc\r\n", "{{ 1 }}\n", "{{ 1 }}\n\n", "{% if yes %}\n{% endif %}\n",
    "{{ 1 }}}", "{ { } }", "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {% if %} {%- endraw -%} x", "{% raw %}a", "{%+ raw %}  x{%+ endraw +%}\ny",
    "a {# c #} b", "a {#- c -#} b", "a\n  {# c #}\nb", "a\n {#+ c +#}\nb", "{# {{ x }} {% if %} #}x", "{# a", "{#-#}x", "{##}x",
    "  {% if yes %}x{% endif %}", "a  {% if yes %}x{% endif %}", "a\n  {% if yes %}\n  x\n  {% endif %}\nb", "a\n  {{ n }}\nb", "a\n\t{%- if yes -%}\n x \n{%- endif -%}\n b",
    "a\n  {%+ if yes %}\n  x\n  {%+ endif +%}\nb", "a\n  {{- n -}}\n  b", "a\n  {{ n -}}\n\n  b", "a {{+ n }}", "a\u3000{{- n }}", "x{% if yes %}\n\ny{% endif %}\n\nz",
    "{% if yes -%}\n   a\n{%- else -%}\n   b\n{%- endif %}", "{%if yes%}a{%endif%}", "{{n}}{{-n-}}{{n}}", "{% for i in nums -%} {{ i }} {%- endfor %}",
    "{% for i in nums %}\n{{ i }}\n{% endfor %}\n", "  {# a #}  {# b #}\nx", "{{ '{{' }} {{ '%}' }} {{ \"}}\" }}", "{{ {'a': {'b': 1}}['a'] }}", "{{ {'a': 1}}}",
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}", "{% if no %}a{% elif no %}b{% endif %}", "{% if yes, no %}t{% endif %}", "{% if yes: %}x{% endif %}",
    "{% if undefined_name %}a{% else %}b{% endif %}", "{% if yes %}a", "{% endif %}", "{% if yes %}{% else %}{% elif no %}{% endif %}", "{% if %}{% endif %}", "{% nope %}", "{% %}", "{% 'x' %}",
    "{% for i in nums %}{{ i }},{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in nums %}{{ i }}{% else %}none{% endfor %}", "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}", "{% for c in 'héy' %}{{ c }};{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in undefined_name %}x{% else %}e{% endfor %}",
    "{% for i in nums if i > 1 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}", "{% for i in nums if i > 5 %}x{% else %}none{% endfor %}", "{% for i in range(3) if i is odd %}{{ i }}{{ loop.first }}{{ loop.last }}{% endfor %}",
    "{% for i in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for i in nums %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}", "{% for i in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}", "{% for i in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in nums %}{{ loop.cycle() }}{% endfor %}",
    "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in nums %}{% for j in nums %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for i in nums %}{% set outer = loop %}{% for j in [1] %}{{ outer.index }}.{{ loop.index }};{% endfor %}{% endfor %}",
    "{% for i in nums %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in nums %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in nums %}{% break %}{% else %}else{% endfor %}", "{% for i in nums %}{% continue %}{% else %}else{% endfor %}", "{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}", "{% break %}", "{% continue %}", "{% for i in nums %}{% else %}{% break %}{% endfor %}", "{% for i in nums %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for i in nums recursive %}{{ i }}{% endfor %}", "{% for i in [[1, [2]], [3]] recursive %}{{ loop(i) if i is iterable else i }}({{ loop.depth }}){% endfor %}", "{% for i in nums %}{{ loop([1]) }}{% endfor %}", "{% for i in nums %}{{ loop }}{% break %}{% endfor %}" if False else "",
    "{% for loop in nums %}{% endfor %}", "{% for i in nums %}{% set loop = 1 %}{% endfor %}", "{% for i in x y %}{% endfor %}", "{% for i nums %}{% endfor %}", "{% for 1 in nums %}{% endfor %}", "{% for i in nums %}",
    "{% for i in nums %}{{ i }}{% endfor %}{{ i is defined }}", "{% set i = 9 %}{% for i in nums %}{{ i }}{% endfor %}{{ i }}", "{% set v = 0 %}{% for i in nums %}{% set v = v + i %}{{ v }}{% endfor %}{{ v }}", "{% for n in nums %}{{ n }}{% endfor %}{{ n }}", "{% for i in range(2) %}{% if i == 0 %}{% set q = 5 %}{% endif %}[{{ q }}]{% endfor %}",
    "{% set sel = nums | select('odd') %}{% for i in sel %}{{ i }}{% endfor %}|{% for i in sel %}{{ i }}{% endfor %}|", "{% set g = nums | map('string') %}{{ g | first }}{{ g | list }}", "{% set ns = namespace(stop=false) %}{% for i in range(5) if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% for i in nums | map('string') %}{{ loop.last }}{{ loop.length }}{% endfor %}", "{% for i in nums | select('odd') %}{{ loop.revindex }}{{ loop.nextitem }};{% endfor %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [3, 4] %}{{ a }}{{ b }}", "{% set (a, b) = (1, 2) %}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = 1 %}", "{% set a %}x{{ n }}{% endset %}{{ a | upper }}", "{% set a | upper %}x{% endset %}{{ a }}", "{% set a | upper | replace('X', 'y') %}x{% endset %}{{ a }}", "{% set a %}", "{% set a = %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% set a.b = 2 %}", "{% set d.b = 2 %}", "{% set s[0] = 2 %}",
    "{% set a %}\n x\n{% endset %}[{{ a }}]", "{% if yes %}{% set a = 5 %}{% endif %}{{ a }}", "{% set a = a | default(3) %}{{ a }}", "{% set n = n + 1 %}{{ n }}", "{% set x = none %}{{ x is none }}", "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b is defined }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}", "{% set ns = namespace(t=0) %}{% for i in nums %}{% set ns.t = ns.t + i %}{% endfor %}{{ ns.t }}", "{% set ns = namespace(l=[]) %}{% for i in nums %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}{{ ns }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "{% set ns = namespace() %}{% set ns.text %}abc{% endset %}{{ ns.text }}", "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self is defined }}", "{% set undefined_ns.a = 1 %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m(a, b=n) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m(x) %}{{ x }}{{ n }}{% endmacro %}{{ m(1) }}{{ x }}", "{% set q = 1 %}{% macro m() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ m() }}", "{% macro m(k) %}{{ k }}{% if k > 0 %}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}\n  x\n{% endmacro %}[{{ m() }}]", "{% macro m() %}{% set z = 1 %}{% endmacro %}{{ m() }}{{ z is defined }}", "{{ m() }}{% macro m() %}{% endmacro %}", "{% macro m() %}{% endmacro %}{{ m }}{{ m.name }}{{ m is callable }}", "{% macro m(a) %}{{ a | upper }}{% endmacro %}{{ m('x') | lower }}{{ m('y') ~ 'z' }}{{ m('q') | length }}", "{% macro m(k) %}{{ m(k + 1) }}{% endmacro %}{{ m(0) }}", "{% for i in nums %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=3) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% call 5 %}{% endcall %}", "{% call m %}{% endcall %}", "{% macro m(x) %}{{ caller() }}{{ x }}{% endmacro %}{% call m(1) %}{% set y = 5 %}{{ y }}{% endcall %}{{ y is defined }}", "{% macro m() %}{{ caller.name }}|{{ caller.arguments }}{% endmacro %}{% call(a) m() %}{% endcall %}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}", "{% filter indent(2) %}a\nb\n{% endfilter %}", "{% filter nope %}{% endfilter %}", "{% filter trim %}\n  x\n{% set q = 1 %}{% endfilter %}{{ q is defined }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% print n %}{% print 1, 2 %}",
    "{% generation %}x{% endgeneration %}", "a{% generation %}é{{ n }}{% endgeneration %}b{% generation %}{% endgeneration %}", "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q is defined }}", "{% for i in nums %}é{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}", "a\n  {%- generation -%}\n x \n{%- endgeneration -%}\n b", "a\n  {% generation %}\n x\n  {% endgeneration %}\n b", "{% generation %}", "{% for i in nums %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% generation x %}{% endgeneration %}",
    "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% do nums.append(1) %}", "{% debug %}", "{% trans %}x{% endtrans %}",
    "{{ s }}{{ s }", "{{ s", "{% if yes", "}}", "%}", "{{ }}", "{{ s s }}", "{{ 'a' if }}", "{{ [1, }}", "{{ ) }}", "{{ (] }}", "{{ {'a': } }}", "{{ s.upper().lower() }}", "{{ s\n | upper\n }}", "{{\n1\n+\n2\n}}", "{%\nif yes\n%}x{%\nendif\n%}",
    "{{ é }}", "{% set é = 1 %}{{ é }}", "{% set 日本 = 'x' %}{{ 日本 }}", "{{ _x is defined }}", "{% set _x = 1 %}{{ _x }}", "{{ 'a\nb' }}", "{{ '\\' }}", "{{ '\\\\' }}", "{{ '\\u12' }}", "{{ '\\N{DASH}' is defined }}" if False else "",
    "{% if yes %}{{ s | nope }}{% endif %}", "{% if no %}{{ s | nope }}{% endif %}ok", "{% if no %}{% for i in nums %}{{ i is nope }}{% endfor %}{% endif %}ok" if False else "", "{% set items = [1] %}{{ items[0] }}{{ items }}", "{{ d.items() | map('first') | list }}", "{% for x in d.values() %}{{ x }};{% endfor %}{{ x }}",
    "{% set f = s.upper %}{{ f() }}", "{% set g = range %}{{ g(2) | list }}", "{% set j = joiner(',') %}{{ j() }}{{ j() }}{{ j() }}", "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{{ users | groupby('age') | first }}", "{% for g in users | groupby('age') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join(',') }};{% endfor %}", "{% for age, list in users | groupby('age') %}{{ age }}:{{ list | length }};{% endfor %}",
    "{% set a = {'x': 1} %}{% set a = dict(a, y=2) %}{{ a }}", "{{ [1, 2, 3] | random is defined }}" if False else "", "{% for i in range(100000) %}{% endfor %}ok",
]
