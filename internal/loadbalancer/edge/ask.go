package edge

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/service"
)

// weightHeader is the header with the node's number of endpoints (KEP-3836; kube-proxy since 1.26).
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// maxAnswer limits the header of an answer in bytes. The body is not read.
const maxAnswer = 8 << 10

// AskHTTP returns a function that asks a target by HTTP. The answer 200 means passing, any other answer failing, and no
// answer in time silent. Each question is a new connection, like a client's.
func AskHTTP(c Checks, userAgent string) func(context.Context, Target) service.ProbeResult {
	client := &http.Client{
		Transport: &http.Transport{
			Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswer,
			DialContext: (&net.Dialer{}).DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, t Target) service.ProbeResult {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.At.String()+t.Path, nil)
		if err != nil {
			return service.ProbeResult{State: service.Silent}
		}
		r.Header.Set("User-Agent", userAgent)
		answer, err := client.Do(r)
		if err != nil {
			return service.ProbeResult{State: service.Silent}
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return service.ProbeResult{State: service.Failing}
		}
		return service.ProbeResult{State: service.Passing, Weight: weight(answer.Header.Get(weightHeader))}
	}
}

// weight reads the header; 0 if it is missing or invalid.
func weight(text string) uint16 {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 63)
	if err != nil {
		return 0
	}
	return uint16(min(n, 1<<16-1))
}
