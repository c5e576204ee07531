package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// title is the only job on offer, from the article behind the examples.
const title = "Instructor at Learnk8s"

// job is the answer of the API. With Frontend set, it is the JSON answer of the front end.
type job struct {
	Job      string `json:"job"`
	Pod      string `json:"pod"`                // the back-end pod that processed the request
	Frontend string `json:"frontend,omitempty"` // the front-end pod that asked the back-end pod
}

// api is the handler of the back end. It answers with a job and the name of its pod.
func api(pod string) http.Handler {
	return site(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, job{Job: title, Pod: pod})
	}))
}

// itWorks serves the page of a freshly installed httpd.
func itWorks() http.Handler {
	return site(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html><body><h1>It works!</h1></body></html>\n")
	}))
}

// frontend asks the back end and shows its answer.
type frontend struct {
	pod     string
	backend string
	client  *http.Client
	log     *slog.Logger
}

func newFrontend(pod, backend string, log *slog.Logger) http.Handler {
	return site(&frontend{pod: pod, backend: backend, log: log, client: &http.Client{
		Timeout: 5 * time.Second,
		// Every request uses a new connection. A Service balances connections, so a kept connection would always reach
		// the same pod.
		Transport: &http.Transport{DisableKeepAlives: true},
	}})
}

func (f *frontend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	j, err := f.ask(r.Context())
	if err != nil {
		f.log.Error("cannot ask the back end", "err", err)
		http.Error(w, fmt.Sprintf("The back end does not answer: %v", err), http.StatusBadGateway)
		return
	}
	f.log.Info("asked the back end", "job", j.Job, "pod", j.Pod)
	switch accept := r.Header.Get("Accept"); {
	case strings.Contains(accept, "application/json"):
		writeJSON(w, j)
	case strings.Contains(accept, "text/html"):
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, page, html.EscapeString(j.Job), html.EscapeString(j.Pod), html.EscapeString(j.Frontend))
	default:
		fmt.Fprintf(w, "Job:       %s\nBack end:  %s\nFront end: %s\n", j.Job, j.Pod, j.Frontend)
	}
}

// ask fetches one job from the back end by its DNS name.
func (f *frontend) ask(ctx context.Context) (job, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.backend, nil)
	if err != nil {
		return job{}, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return job{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return job{}, fmt.Errorf("%s: %s", f.backend, resp.Status)
	}
	j := job{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&j); err != nil {
		return job{}, fmt.Errorf("%s: read the answer: %w", f.backend, err)
	}
	j.Frontend = f.pod
	return j, nil
}

// page is the page for browsers: the job, the back-end pod, the front-end pod.
const page = `<!doctype html>
<html><head><title>Jobs</title></head><body>
<h1>%s</h1>
<p>processed by <b>%s</b>, shown by <b>%s</b></p>
</body></html>
`

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// Encoding cannot fail, because the values are strings. An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(v)
}
