package page

import (
	"embed"
	"encoding/json"
	"html/template"
	"io/fs"
	"net/http"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

//go:embed web
var web embed.FS

// static has the modules, the style sheet and the icon.
var static = func() fs.FS {
	sub, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}()

var index = template.Must(template.ParseFS(static, "index.html"))

// The bounds of a page.
const (
	maxStreams   = 32 // open pages
	maxReads     = 4  // views that read the API server at once
	maxMaps      = 2  // maps: each reads the nodes
	maxAsks      = 2  // questions for a path at once
	maxBody      = 4 << 10
	readLimit    = 10 * time.Second // a request's body
	viewLimit    = 15 * time.Second
	askLimit     = 90 * time.Second
	answerLimit  = 30 * time.Second // writing a view or a file
	streamWrite  = 10 * time.Second // one write to a stream
	streamPause  = 400 * time.Millisecond
	streamSilent = 15 * time.Second // then a comment tells whether the browser is still there
)

// A Page is the handler of the web page.
type Page struct {
	guard
	source  Source
	mux     *http.ServeMux
	board   board
	streams chan struct{}
	reads   chan struct{}
	asks    chan struct{}
	maps    chan struct{}
	// write and pause are streamWrite and streamPause, which tests shorten.
	write, pause time.Duration
}

// New returns a page without Services. host is the address and port of the listener. token is the token of the URL.
func New(host, token string, source Source) *Page {
	p := &Page{
		guard: newGuard(host, token), source: source, mux: http.NewServeMux(), write: streamWrite, pause: streamPause,
		streams: make(chan struct{}, maxStreams), reads: make(chan struct{}, maxReads), asks: make(chan struct{}, maxAsks),
		maps: make(chan struct{}, maxMaps),
	}
	p.board.init()
	p.mux.HandleFunc("GET /{$}", p.index)
	p.mux.HandleFunc("GET /services.json", p.services)
	p.mux.HandleFunc("GET /service.json", p.service)
	p.mux.HandleFunc("GET /events", p.events)
	p.mux.HandleFunc("GET /traffic", p.traffic)
	p.mux.HandleFunc("POST /path", p.path)
	p.mux.Handle("GET /", http.FileServerFS(static))
	return p
}

// Set replaces and removes rows. gone has names as NAMESPACE/NAME.
func (p *Page) Set(rows []Service, gone []string) { p.board.set(rows, gone) }

// SetState replaces the state of the page itself.
func (p *Page) SetState(s State) { p.board.setState(s) }

// Watched reports whether a browser shows the page.
func (p *Page) Watched() bool { return len(p.streams) > 0 }

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.admit(w, r) {
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerLimit)) // a test's recorder has no connection
	p.mux.ServeHTTP(w, r)
}

func (p *Page) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = index.Execute(w, struct{ Token string }{p.form}) // an error means that the browser left
}

// services answers programs with the whole list.
func (p *Page) services(w http.ResponseWriter, _ *http.Request) {
	u, _ := p.board.since(0)
	writeJSON(w, http.StatusOK, u)
}

func (p *Page) service(w http.ResponseWriter, r *http.Request) {
	ctx, done, ok := begin(w, r, p.reads, viewLimit)
	if !ok {
		return
	}
	defer done()
	q := r.URL.Query()
	name, err := api.ParseName(q.Get("name"))
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	v, err := p.source.View(ctx, name, q.Get("node"), q.Get("from"))
	switch {
	case err != nil:
		writeError(w, http.StatusBadGateway, err)
	case v == nil:
		writeJSON(w, http.StatusNotFound, Answer{Error: "there is no Service " + name.String()})
	default:
		writeJSON(w, http.StatusOK, v)
	}
}

func writeError(w http.ResponseWriter, status int, err error) {
	what, hint := text.SplitHint(text.OneLine(err).Error())
	writeJSON(w, status, Answer{Error: what, Advice: hint})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the browser left
}
