// Posts a JSON body with Node's own fetch. Arguments: URL BODY. Prints what came back as one JSON line.
const [url, body] = process.argv.slice(2);
const answer = await fetch(url, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body,
});
// fetch does not tell which version it spoke; it knows only one.
console.log(JSON.stringify({ status: answer.status, http: "1.1", body: await answer.text() }));
