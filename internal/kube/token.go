package kube

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenAge is for how long a token is shown without reading its file again.
const tokenAge = time.Minute

// A tokenTransport shows the API server the token that a file holds. When a token is refused,
// and the file holds another one by now, the request is sent once more with that: a rotated
// token makes no request fail. client-go's transport reads the file only for the request
// after the next.
type tokenTransport struct {
	base http.RoundTripper
	path string

	mu    sync.Mutex
	token string
	read  time.Time
}

// current returns the token; refused is the one that was just refused, if any.
func (t *tokenTransport) current(refused string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != "" && t.token != refused && time.Since(t.read) < tokenAge {
		return t.token, nil
	}
	text, err := os.ReadFile(t.path)
	token := strings.TrimSpace(string(text))
	switch {
	case err == nil && token != "":
		t.token, t.read = token, time.Now()
	case t.token != "": // what there was may still do
	case err != nil:
		return "", fmt.Errorf("read token: %w", err)
	default:
		return "", fmt.Errorf("read token: %s is empty", t.path)
	}
	return t.token, nil
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") != "" {
		return t.base.RoundTrip(r)
	}
	token, err := t.current("")
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	answer, err := t.base.RoundTrip(withToken(r, token))
	if err != nil || answer.StatusCode != http.StatusUnauthorized || r.Body != nil && r.GetBody == nil {
		return answer, err
	}
	next, err := t.current(token)
	if err != nil || next == token {
		return answer, nil
	}
	again := withToken(r, next)
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return answer, nil
		}
	}
	const most = 4096 // of a refusal; a connection whose answer was read serves the next request
	_, _ = io.CopyN(io.Discard, answer.Body, most)
	_ = answer.Body.Close()
	return t.base.RoundTrip(again)
}

func withToken(r *http.Request, token string) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// WrappedRoundTripper is by what client-go finds the transport below.
func (t *tokenTransport) WrappedRoundTripper() http.RoundTripper { return t.base }
