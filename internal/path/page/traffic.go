package page

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

// mapLimit ends a map, so that a forgotten page does not read the nodes for ever. The browser asks again.
const mapLimit = 10 * time.Minute

// traffic sends the newest figures of the nodes, until the browser leaves or reads too slowly.
func (p *Page) traffic(w http.ResponseWriter, r *http.Request) {
	var service api.Name
	if q := r.URL.Query().Get("service"); q != "" {
		var err error
		if service, err = api.ParseName(q); err != nil {
			writeError(w, http.StatusBadRequest, err)
			return
		}
	}
	ctx, done, ok := begin(w, r, p.maps, mapLimit)
	if !ok {
		return
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := stream{w, http.NewResponseController(w), p.write}
	w.Header().Set("Content-Type", "text/event-stream")
	newest, ended := make(chan Traffic, 1), make(chan error, 1)
	go func() {
		ended <- p.source.Traffic(ctx, service, func(t Traffic) {
			select {
			case <-newest: // the browser is slow, and gets this one instead
			default:
			}
			newest <- t
		})
	}()
	send := func(t Traffic) error { return s.send(fmt.Appendf(nil, "data: %s\n\n", encode(t))) }
	for left := error(nil); ; {
		select {
		case t := <-newest:
			if left == nil {
				if left = send(t); left != nil {
					cancel() // the nodes' streams end before the answer does
				}
			}
		case err := <-ended:
			if err != nil && left == nil {
				what, hint := text.SplitHint(text.OneLine(err).Error())
				_ = send(Traffic{Error: what, Advice: hint, Edges: []Edge{}}) // the answer ends anyway
			}
			return
		}
	}
}
