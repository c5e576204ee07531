package page

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// chunk bounds the bytes of one write to a stream. Each write has its own deadline.
const chunk = 64 << 10

// events sends the changes since the browser's version, until the browser leaves or reads too slowly. Changes during the
// pause between two messages become one message.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		writeError(w, http.StatusServiceUnavailable, fmt.Errorf("%d pages are open already [close some]", maxStreams))
		return
	}
	s := stream{w, http.NewResponseController(w), p.write}
	w.Header().Set("Content-Type", "text/event-stream")
	seen := seenVersion(r)
	silent := time.NewTicker(streamSilent)
	defer silent.Stop()
	for {
		u, changed := p.board.since(seen)
		if u.Version != seen {
			if s.send(fmt.Appendf(nil, "id: %d\ndata: %s\n\n", u.Version, encode(u))) != nil {
				return
			}
			seen = u.Version
			silent.Reset(streamSilent)
			select {
			case <-time.After(p.pause):
			case <-r.Context().Done():
				return
			}
		}
		select {
		case <-changed:
		case <-silent.C:
			if s.send([]byte(":\n\n")) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// seenVersion returns the browser's version: from the header after a reconnect, from the query after a pause.
func seenVersion(r *http.Request) uint64 {
	for _, text := range []string{r.Header.Get("Last-Event-ID"), r.URL.Query().Get("since")} {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return n
		}
	}
	return 0
}

// A stream is an answer that goes on.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration // of one write
}

// send writes a message. An error means that the browser left, or did not read for too long.
func (s stream) send(message []byte) error {
	for b := bytes.NewReader(message); b.Len() > 0; {
		if err := s.control.SetWriteDeadline(time.Now().Add(s.limit)); err != nil {
			return err
		}
		part := make([]byte, min(chunk, b.Len()))
		_, _ = b.Read(part) // a reader of bytes that are there does not fail
		if _, err := s.w.Write(part); err != nil {
			return err
		}
		if err := s.control.Flush(); err != nil {
			return err
		}
	}
	return nil
}
