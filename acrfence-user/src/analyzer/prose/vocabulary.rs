//! Words that state something: numbers, days, units, negations, opposites.

pub(super) const NEGATIONS: &[&str] = &[
    "not", "no", "never", "without", "none", "nor", "neither", "nothing", "nobody", "nowhere", "cannot", "unable",
    "n't", "lack", "lacks", "lacking", "lacked", "missing", "absent", "stop", "nicht", "kein", "keine", "keinen", "keiner", "nie", "ohne", "ne", "pas",
    "jamais", "sans", "aucun", "aucune", "nunca", "sin", "ningún", "non", "senza", "niet", "geen", "nooit", "não",
    "nem", "sem", "nie", "inte", "ikke", "ei",
];

pub(super) const FUNCTION_WORDS: &[&str] = &[
    "a", "an", "the", "to", "of", "in", "on", "at", "by", "for", "with", "and", "or", "as", "is", "are", "was",
    "were", "be", "been", "being", "it", "its", "this", "that", "these", "those", "there", "here", "i", "we", "you",
    "he", "she", "they", "them", "me", "us", "my", "our", "your", "his", "her", "their", "please", "kindly",
    "could", "would", "can", "will", "shall", "should", "do", "does", "did", "has", "have", "had", "from", "into",
    "then", "than", "so", "also", "just", "now", "when", "where", "who", "which", "what", "if", "up", "out",
    "over_", "about", "per", "via", "after_", "thanks", "thank", "many", "hello", "hi", "dear", "der", "die", "das",
    "und", "le", "la", "les",
];

pub(super) const NUMBER_WORDS: &[(&str, &str)] = &[
    ("zero", "0"), ("two", "2"), ("three", "3"), ("four", "4"), ("five", "5"), ("six", "6"), ("seven", "7"),
    ("eight", "8"), ("nine", "9"), ("ten", "10"), ("eleven", "11"), ("twelve", "12"), ("thirteen", "13"),
    ("fourteen", "14"), ("fifteen", "15"), ("sixteen", "16"), ("seventeen", "17"), ("eighteen", "18"),
    ("nineteen", "19"), ("twenty", "20"), ("thirty", "30"), ("forty", "40"), ("fifty", "50"), ("sixty", "60"),
    ("seventy", "70"), ("eighty", "80"), ("ninety", "90"), ("hundred", "100"), ("thousand", "1000"),
    ("dozen", "12"), ("twice", "2"), ("second", "2"), ("third", "3"), ("fourth", "4"), ("fifth", "5"),
    ("sixth", "6"), ("seventh", "7"), ("eighth", "8"), ("ninth", "9"), ("tenth", "10"), ("zwei", "2"),
    ("drei", "3"), ("vier", "4"), ("deux", "2"),
];

pub(super) const DAYS: &[(&str, &str)] = &[
    ("monday mon montag lundi lunes", "Monday"), ("tuesday tue tues dienstag mardi martes", "Tuesday"),
    ("wednesday wed mittwoch mercredi", "Wednesday"),
    ("thursday thu thur thurs donnerstag jeudi jueves", "Thursday"),
    ("friday fri freitag vendredi viernes", "Friday"), ("saturday sat samstag samedi", "Saturday"),
    ("sunday sun sonntag dimanche domingo", "Sunday"), ("january jan januar janvier enero", "January"),
    ("february feb februar février febrero", "February"), ("march mar märz mars marzo", "March"),
    ("april apr avril abril", "April"), ("may mai mayo", "May"), ("june jun juni juin junio", "June"),
    ("july jul juli juillet julio", "July"), ("august aug août agosto", "August"),
    ("september sep sept septembre septiembre", "September"), ("october oct oktober octobre octubre", "October"),
    ("november nov novembre noviembre", "November"), ("december dec dezember décembre diciembre", "December"),
    ("today heute aujourd'hui hoy", "today"), ("tomorrow morgen demain mañana", "tomorrow"),
    ("yesterday gestern hier ayer", "yesterday"), ("tonight", "tonight"),
];

pub(super) const UNIT_WORDS: &[(&str, &str)] = &[
    ("% percent pct", "%"), ("eur euro euros €", "EUR"), ("usd dollar dollars", "USD"),
    ("gbp pound_sterling", "GBP"), ("chf franken", "CHF"), ("kg kilo kilos kilogram kilograms", "kg"),
    ("g gram grams", "g"), ("mg milligram milligrams", "mg"), ("lb lbs pounds", "lb"),
    ("t ton tons tonne tonnes", "t"), ("km kilometre kilometres kilometer kilometers", "km"),
    ("m metre metres meter meters", "m"), ("cm", "cm"), ("mm", "mm"), ("ml", "ml"),
    ("l litre litres liter liters", "l"), ("s sec secs second_s seconds", "s"), ("ms milliseconds", "ms"),
    ("min mins minute minutes", "min"), ("h hr hrs hour hours", "h"), ("day days", "d"), ("week weeks", "w"),
    ("month months", "month"), ("year years", "y"), ("kb", "kB"), ("mb", "MB"), ("gb", "GB"), ("tb", "TB"),
    ("°c celsius", "°C"), ("°f fahrenheit", "°F"),
];

pub(super) const OPPOSITES: &[(&str, &str)] = &[
    ("approve approved approval", "reject rejected deny denied decline declined refuse refused"),
    ("accept accepted", "reject rejected decline declined refuse refused"), ("enable enabled", "disable disabled"),
    ("allow allowed permit permitted may", "forbid forbidden deny denied prohibit prohibited"),
    ("start started begin begun", "stop stopped end ended halt"), ("open opened", "close closed shut"),
    ("increase increased raise raised more higher", "decrease decreased lower lowered reduce reduced less fewer"),
    ("add added include included including", "remove removed exclude excluded excluding delete deleted drop dropped"),
    ("grant granted", "revoke revoked withdraw withdrawn"), ("buy bought", "sell sold"),
    ("before earlier prior ahead", "after later once afterwards"),
    ("above over exceed exceeds exceeding", "below under beneath"),
    ("keep kept retain", "delete deleted discard discarded remove removed"), ("lock locked", "unlock unlocked"),
    ("activate activated", "deactivate deactivated"), ("on", "off"), ("up", "down"), ("left", "right"),
    ("north", "south"), ("east", "west"), ("morning", "evening afternoon night"),
    ("upgrade upgraded", "downgrade downgraded"), ("send sent", "hold held withhold"),
    ("credit credited", "debit debited charge charged"), ("public", "private internal"),
    ("success succeeded successful passed", "failure failed unsuccessful"),
    ("must required mandatory", "optional voluntary may"), ("all every everyone", "none nobody"), ("hot", "cold"),
    ("hire hired", "fire fired dismiss dismissed"), ("arrive arrival", "depart departure leave"),
    ("confirm confirmed", "cancel cancelled canceled"), ("release released", "hold block blocked retain retained"),
    ("win won", "lose lost"), ("inside", "outside"), ("maximum most", "minimum least"), ("first", "last"),
    ("full", "empty"), ("urgent", "routine"), ("positive", "negative"), ("paid", "unpaid"),
    ("connect connected", "disconnect disconnected"), ("push pushed", "revert reverted"),
];

pub(super) const RESTRICTIONS: &[&str] = &[
    "only solely merely exclusively", "except excluding unless besides", "until till",
    "all every each entire whole everything", "both", "instead rather",
];
