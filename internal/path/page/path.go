package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/fairway-net/fairway/internal/text"
)

// maxPlace is the longest FROM and TO.
const maxPlace = 512

// path answers a Question with lines of JSON, as they come.
func (p *Page) path(w http.ResponseWriter, r *http.Request) {
	s := stream{w, http.NewResponseController(w), p.write}
	_ = s.control.SetReadDeadline(time.Now().Add(readLimit)) // a test's recorder has no connection
	var q Question
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(&q); err != nil || len(q.From) > maxPlace || len(q.To) > maxPlace {
		writeError(w, http.StatusBadRequest, fmt.Errorf("the question is no question: FROM and TO have at most %d letters", maxPlace))
		return
	}
	_ = s.control.SetReadDeadline(time.Time{}) // the answer may take longer
	ctx, done, ok := begin(w, r, p.asks, askLimit)
	if !ok {
		return
	}
	defer done()
	w.Header().Set("Content-Type", "application/x-ndjson")
	var left error
	send := func(a Answer) {
		if left == nil {
			left = s.send(append(encode(a), '\n'))
		}
	}
	if err := p.source.Ask(ctx, q, send); err != nil {
		what, hint := text.SplitHint(text.OneLine(err).Error())
		send(Answer{Error: what, Advice: hint})
	}
}
