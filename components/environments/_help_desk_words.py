"""What customers say. Training draws from `KNOWN`; `NEW` wordings appear in dev and test only.

`{it}` is the order, by number or by what was in it; `{item}` is a product, `{address}` a street and number. Every
wording stays under a dozen words, so that two tasks never share a long run of words.
"""

KNOWN: dict[str, tuple[str, ...]] = {
    "status": (
        "What is the status of {it}?",
        "Can you check how {it} stands?",
        "Has {it} left your warehouse?",
        "Is {it} packed or on its way?",
        "Please tell me the state of {it}.",
        "I would like the status of {it}.",
        "How far is {it}?",
    ),
    "delivery": (
        "When will {it} arrive?",
        "What day does {it} get here?",
        "On which day can I expect {it}?",
        "Please tell me the delivery day of {it}.",
        "When does {it} come?",
        "I need the arrival day of {it}.",
        "Which day will {it} be here?",
    ),
    "price": (
        "How much is the {item}?",
        "What does the {item} cost?",
        "I need the price of the {item}.",
        "Please tell me the price of your {item}.",
        "I want a {item}. How much is it?",
    ),
    "stock": (
        "How many pieces of the {item} are in stock?",
        "How many of the {item} are left?",
        "What is your stock of the {item}?",
        "Is the {item} in stock, and how many?",
        "Please tell me how many {item} pieces you have.",
    ),
    "cancel": (
        "Please cancel {it}.",
        "I want to cancel {it}.",
        "Can you cancel {it}?",
        "I no longer need {it}. Cancel it.",
        "I changed my mind, cancel {it}.",
        "Stop {it}, I bought it by mistake.",
        "Cancel {it} for me.",
    ),
    "address": (
        "Please send {it} to {address}.",
        "I moved. Ship {it} to {address}.",
        "Change the address of {it} to {address}.",
        "Can you deliver {it} to {address}?",
        "The address of {it} is wrong, use {address}.",
        "My new address for {it} is {address}.",
        "Ship {it} to {address} please.",
    ),
    "return": (
        "I want to return {it}.",
        "Can I send {it} back?",
        "I do not like {it}. I want to return it.",
        "Please start a return for {it}.",
        "How do I give {it} back?",
        "I would like to send back {it}.",
        "Please take {it} back.",
    ),
    "exchange": (
        "Please exchange {it} for the {item}.",
        "Can I swap {it} for a {item}?",
        "I want the {item} instead of {it}.",
        "I would like to change {it} into the {item}.",
        "Swap {it} for the {item}.",
        "Please trade {it} for a {item}.",
        "Can you exchange {it}? I prefer the {item}.",
    ),
    "refund": (
        "{it} came broken. I want my money back.",
        "{it} arrived in pieces. Please refund me.",
        "I want a refund, {it} is broken.",
        "Please refund {it}, it is damaged.",
        "{it} does not work. Refund it.",
        "My money back for {it}, it is cracked.",
        "{it} is damaged. Can I get a refund?",
    ),
    "voucher": (
        "{it} is late. I want a voucher.",
        "{it} should be here already. Send me a voucher.",
        "Can I get a voucher? {it} is late.",
        "I still wait for {it}. What about a voucher?",
        "{it} is overdue, please send a voucher.",
        "I want a voucher because {it} is late.",
        "Too slow! A voucher for {it}, please.",
    ),
}
NEW: dict[str, tuple[str, ...]] = {
    "status": (
        "Any news on {it}?",
        "Did {it} ship already?",
        "Could you look into {it}? Where does it stand?",
    ),
    "delivery": (
        "What day should I be home for {it}?",
        "Which weekday will {it} reach me?",
        "I wait for {it}. What day will it come?",
    ),
    "price": ("What would I pay for the {item}?", "How expensive is the {item}?"),
    "stock": ("Do you have many of the {item}? What number?", "How large is your {item} stock?"),
    "cancel": (
        "Could you call off {it}?",
        "I do not want {it} any more.",
        "{it} was a mistake, please drop it.",
    ),
    "address": (
        "We live at {address} now, so {it} must go there.",
        "Could {it} be sent to {address} instead?",
        "Redirect {it} to {address}.",
    ),
    "return": (
        "{it} is not for me. I will send it back.",
        "May I bring {it} back?",
        "I wish to return {it}, what now?",
    ),
    "exchange": (
        "Could I get the {item} in place of {it}?",
        "{it} is not right, give me the {item} for it.",
        "I want to switch {it} to the {item}.",
    ),
    "refund": (
        "{it} fell apart. Give me back what I paid.",
        "Pay me back, {it} came with a crack.",
        "{it} was broken in the box. Refund?",
    ),
    "voucher": (
        "{it} takes too long. Do I get a voucher?",
        "My patience ends. Any voucher for {it}?",
        "{it} did not come in time. Voucher please.",
    ),
}

KNOWN_OPENERS = ("", "", "", "Hi. ", "Hello. ", "Good morning. ")
NEW_OPENERS = ("", "", "Hey. ", "Dear team. ")
KNOWN_CLOSERS = ("", "", "", " Thanks.", " Thank you!")
NEW_CLOSERS = ("", "", " Cheers.", " Many thanks.")

BY_NUMBER = ("order {order}", "my order {order}", "{order}")
BY_EMAIL = "my {item}"
EMAIL_SENTENCES = (" My email is {email}.", " I am {email}.", " My account is {email}.")

NAMES = (
    "mia", "leo", "ada", "tom", "eva", "max", "zoe", "ben", "lily", "omar", "nina", "paul", "rosa", "ivan", "jane",
    "kurt", "hugo", "anna", "sara", "finn",
)  # fmt: skip
DOMAINS = ("post.net", "mail.com")
STREETS = (
    "Elm Road", "Oak Street", "Mill Lane", "Bay Avenue", "Hill Street", "Park Road", "Lake Drive", "King Street",
    "Rose Lane", "Pine Avenue", "River Road", "Church Street",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
THINGS = ("mug", "lamp", "chair", "bag", "coat", "clock", "kettle", "pillow", "tent", "radio")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
