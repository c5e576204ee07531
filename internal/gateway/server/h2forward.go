package server

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
)

// proxyH2 forwards the request and relays the answer. Trailers pass in both directions, because gRPC needs them.
func (s *Server) proxyH2(r *h2request) {
	x, h := &r.x, r.req.Header
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // not Go's
	}
	resp, answer := x.roundTrip(r.req.WithContext(httptrace.WithClientTrace(r.req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: r.inform,
	})))
	r.early.Lock()
	r.answered = true
	r.early.Unlock()
	if answer != nil {
		x.write(r.w, answer)
		return
	}
	defer resp.Body.Close()
	removeHop(resp.Header)
	x.respond(netHeader{resp.Header})
	if err := r.relay(resp); err != nil {
		x.reason = "the answer ended early"
		x.end(r.w.status, r.w.sent)
		panic(http.ErrAbortHandler) // net/http resets the stream
	}
}

// inform relays an informational answer, such as 103. An attempt that was given up may still call it.
func (r *h2request) inform(code int, header textproto.MIMEHeader) error {
	r.early.Lock()
	defer r.early.Unlock()
	if code == http.StatusContinue || r.answered {
		return nil
	}
	h := r.w.Header()
	for name, values := range header {
		h[name] = values
	}
	r.w.WriteHeader(code)
	clear(h)
	return nil
}

// relay sends the answer's head, body and trailer to the client. A short body goes out with the head. Each piece of another
// body goes out at once.
func (r *h2request) relay(resp *http.Response) error {
	h := r.w.Header()
	h["Content-Type"] = nil // net/http does not guess one
	for name, values := range resp.Header {
		h[name] = values
	}
	announced := len(resp.Trailer)
	for name := range resp.Trailer {
		h["Trailer"] = append(h["Trailer"], name)
	}
	r.w.WriteHeader(resp.StatusCode)
	flush := func() {}
	if n := resp.ContentLength; n < 0 || n > int64(r.x.srv.MaxBuffered) {
		flush = r.w.ResponseWriter.(http.Flusher).Flush
	}
	if resp.ContentLength < 0 {
		flush() // the first piece may be far away
	}
	if err := r.relayBody(resp.Body, flush); err != nil {
		return err
	}
	for name, values := range resp.Trailer {
		if len(resp.Trailer) != announced {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
	return nil
}

func (r *h2request) relayBody(body io.Reader, flush func()) error {
	if body == http.NoBody {
		return nil
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	for {
		n, err := body.Read(*b)
		if n > 0 {
			if _, err := r.w.Write((*b)[:n]); err != nil {
				return err
			}
			flush()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
