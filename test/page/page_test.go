package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/fairway-net/fairway/internal/path/page"
)

const (
	services = 5000
	token    = "secret"
	bin      = "../../bin"
)

// A browser shows one page.
type browser struct {
	*testing.T
	ctx  context.Context
	page *page.Page
	url  string
}

// start starts Chromium and a page, in this network namespace, which must have no uplink.
func start(t *testing.T) *browser {
	t.Helper()
	root, err := filepath.Abs(bin + "/chromium")
	if err != nil {
		t.Fatal(err)
	}
	program := root + "/usr/lib/chromium/chromium"
	if _, err := os.Stat(program); err != nil {
		t.Skip("no Chromium: make test-page unpacks it")
	}
	if links, err := net.Interfaces(); err != nil || len(links) != 1 {
		t.Skip("this network namespace has other links than lo: make test-page makes one")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := page.New(l.Addr().String(), token, cluster{})
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(l) }()
	tmp, err := os.MkdirTemp("", "page") // short: Chromium makes a socket there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	fonts := filepath.Join(t.TempDir(), "fonts.conf")
	if err := os.WriteFile(fonts, []byte(`<?xml version="1.0"?><fontconfig><dir>`+root+`/usr/share/fonts</dir><cachedir>`+t.TempDir()+`</cachedir></fontconfig>`), 0o600); err != nil {
		t.Fatal(err)
	}
	libs, err := filepath.Glob(root + "/usr/lib/*-linux-gnu")
	if err != nil || len(libs) == 0 {
		t.Fatal("Chromium has no libraries", err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	ctx, stopBrowser := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.ModifyCmdFunc(func(c *exec.Cmd) {
			c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libs[0]+":"+libs[0]+"/pulseaudio", "FONTCONFIG_FILE="+fonts, "TMPDIR="+tmp)
		}))...)
	ctx, stopTab := chromedp.NewContext(ctx)
	t.Cleanup(func() { stopTab(); stopBrowser(); stop(); server.Close() })
	b := &browser{t, ctx, p, "http://" + l.Addr().String()}
	b.do(chromedp.EmulateViewport(1280, 800))
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if !strings.Contains(m.String(), "status of 404") { // a Service that is not there
				t.Errorf("console: %v", m)
			}
		}
	}()
	return b
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatal(err)
	}
}

// open opens the page by the URL that the command prints.
func (b *browser) open() {
	b.Helper()
	b.do(chromedp.Navigate(b.url + "/?token=" + token))
}

// is evaluates an expression until it is true, and returns how long that took.
func (b *browser) is(expression string) time.Duration {
	b.Helper()
	begun := time.Now()
	for time.Since(begun) < 10*time.Second {
		if ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+expression+")")); err == nil && ok {
			return time.Since(begun)
		}
		time.Sleep(5 * time.Millisecond)
	}
	text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	b.shot("failed")
	b.Fatalf("never: %s\n%s", expression, text)
	return 0
}

func (b *browser) text(selector string) string {
	b.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q).innerText", selector)))
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// goTo changes the part of the URL that names the view.
func (b *browser) goTo(hash string) {
	b.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf("location.hash = %q", hash))); err != nil {
		b.Fatal(err)
	}
}

func (b *browser) keys(keys string) { b.Helper(); b.do(chromedp.KeyEvent(keys)) }

// colors makes the browser prefer dark or light.
func (b *browser) colors(scheme string) {
	b.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	}))
}

// shot writes a screenshot to bin/page.
func (b *browser) shot(name string) {
	b.Helper()
	data, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	if err := os.MkdirAll(bin+"/page", 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "page", name+".png"), data, 0o644); err != nil {
		b.Fatal(err)
	}
}

// axe fails on what axe-core calls serious or critical.
func (b *browser) axe(where string) {
	b.Helper()
	code, err := os.ReadFile(bin + "/axe/package/axe.min.js")
	if err != nil {
		b.Logf("%s: not looked at: no axe-core", where)
		return
	}
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](string(code)+";true")); err != nil {
		b.Fatal(err)
	}
	await := func(p *cdruntime.EvaluateParams) { yes := true; p.AwaitPromise = &yes }
	found, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`axe.run().then(r => JSON.stringify(r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, at: v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary)}))))`, await))
	if err != nil {
		b.Fatal(err)
	}
	var all []struct {
		ID, Impact, Help string
		At               []string
	}
	if err := json.Unmarshal([]byte(found), &all); err != nil {
		b.Fatal(err)
	}
	for _, v := range all {
		text := fmt.Sprintf("%s: axe: %s (%s): %s\n%s", where, v.ID, v.Impact, v.Help, strings.Join(v.At, "\n"))
		if v.Impact == "serious" || v.Impact == "critical" {
			b.Error(text)
		} else {
			b.Log(text)
		}
	}
}

// TestList opens a page of 5,000 Services, changes some, searches, sorts and moves by keys.
func TestList(t *testing.T) {
	b := start(t)
	b.page.Set(rows(services), nil)
	b.page.SetState(state)
	b.open() // the browser's own start does not count
	b.is(`document.querySelectorAll(".row").length > 10`)
	begun := time.Now()
	b.do(chromedp.Navigate(b.url))
	b.is(`document.querySelectorAll(".row").length > 10`)
	took := time.Since(begun)
	t.Logf("the first page with %d Services took %v", services, took)
	if took > time.Second {
		t.Errorf("the first page took %v, want 1s", took)
	}
	b.is(`document.querySelectorAll(".row").length < 80 && document.querySelector("#count").innerText === "5000 Services"`)
	b.is(`document.querySelector("#live").innerText === "live" && document.querySelector("#banner").hidden`)
	b.axe("list")
	b.shot("list-light")
	b.colors("dark")
	b.axe("list, dark")
	b.shot("list-dark")
	b.colors("light")

	// Only what changed is drawn anew, and soon.
	b.keys("/")
	b.keys("web-4321")
	b.is(`document.querySelector("#count").innerText.startsWith("1 of ")`)
	changed := rows(services)[4321]
	changed.Ready, changed.Finding = 0, "no endpoint is ready"
	b.page.Set([]page.Service{changed}, nil)
	b.is(`document.querySelector(".row .c-finding").innerText === "no endpoint is ready"`)
	b.page.Set(nil, []string{changed.Namespace + "/" + changed.Name})
	b.is(`document.querySelector("#empty").innerText === "No Service matches the search."`)
	b.keys("\x1b")
	b.is(`document.querySelector("#count").innerText === "4999 Services"`)

	// The keys choose a row: down, down, Enter; Esc goes back.
	b.keys("\u0301\u0301") // arrow down
	b.is(`document.querySelector('.row[aria-selected="true"]')?.getAttribute("aria-rowindex") === "3"`)
	b.keys("\r")
	b.is(`location.hash.startsWith("#/service/")`)
	b.keys("\x1b")
	b.is(`!document.querySelector("#list").hidden`)

	// Scrolling shows the end; sorting turns it round.
	b.keys("\u0305") // End
	b.is(`document.querySelector('.row[aria-rowindex="5000"]')`)
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.querySelector("#head button").click(); true`)); err != nil {
		t.Fatal(err)
	}
	b.is(`document.querySelector('[role=columnheader]').getAttribute("aria-sort") === "ascending"`)

	b.do(chromedp.EmulateViewport(390, 844))
	b.is(`document.documentElement.scrollWidth <= 390`)
	b.axe("list, phone")
	b.shot("list-phone")
}

// TestErrors shows the sentence at the top.
func TestErrors(t *testing.T) {
	b := start(t)
	b.page.SetState(page.State{Cluster: state.Cluster, Error: `the API server refuses to list endpointslices, services: User "eve" cannot list resource "services" in API group "" at the cluster scope`, Advice: "see --kubeconfig and --context; the page goes on when the API server answers"})
	b.open()
	b.is(`document.querySelector("#banner").innerText.includes("refuses to list") && document.querySelector("#empty").innerText === "The Services are not known."`)
	b.axe("error")
	b.shot("error-light")
	b.colors("dark")
	b.axe("error, dark")
	b.shot("error-dark")
	b.page.SetState(page.State{Cluster: state.Cluster, Loaded: true})
	b.is(`document.querySelector("#banner").hidden && document.querySelector("#empty").innerText === "The cluster has no Services."`)
}

// TestService shows one Service.
func TestService(t *testing.T) {
	b := start(t)
	b.page.Set(rows(20), nil)
	b.page.SetState(state)
	b.open()
	b.goTo("#/service/shop/web")
	b.is(`document.querySelector("#service-body table")`)
	text := b.text("#service-body")
	for _, want := range []string{"10.96.0.9:80/TCP", "not ready: its readiness probe fails", "75 %", "nobody", "shop/allow-cart", "no: its zone hint", "FailedToUpdate"} {
		if !strings.Contains(text, want) {
			t.Errorf("the view lacks %q:\n%s", want, text)
		}
	}
	b.axe("service")
	b.shot("service-light")
	b.colors("dark")
	b.axe("service, dark")
	b.shot("service-dark")
	b.do(chromedp.EmulateViewport(390, 844))
	b.is(`document.documentElement.scrollWidth <= 390`)
	b.axe("service, phone")
	b.shot("service-phone")
	b.goTo("#/service/shop/none")
	b.is(`document.querySelector("#service-body").innerText.includes("there is no Service shop/none")`)
}

// TestMap shows the traffic of Services, and of one Service's endpoints.
func TestMap(t *testing.T) {
	b := start(t)
	b.page.Set(rows(20), nil)
	b.page.SetState(state)
	b.open()
	b.goTo("#/map")
	b.is(`document.querySelectorAll("#map svg path").length === 4`)
	b.is(`document.querySelector("#map svg path").getAttribute("stroke-width") === "22.0"`)
	b.is(`document.querySelector("#map table").innerText.includes("kube-system/kube-dns:dns")`)
	b.axe("map")
	b.shot("map-light")
	b.goTo("#/map/shop/web")
	b.is(`document.querySelectorAll("#map svg path").length === 3 && document.querySelectorAll("#map svg path.trouble").length === 1`)
	b.colors("dark")
	b.axe("map of a Service, dark")
	b.shot("map-service-dark")
	b.do(chromedp.EmulateViewport(390, 844))
	b.is(`document.documentElement.scrollWidth <= 390`)
	b.shot("map-phone")
	b.keys("\x1b")
	b.is(`!document.querySelector("#list").hidden`)
}

// TestPath asks for a path, and sends a probe.
func TestPath(t *testing.T) {
	b := start(t)
	b.page.Set(rows(20), nil)
	b.page.SetState(state)
	b.open()
	b.goTo("#/path?to=svc/shop/web")
	b.is(`document.activeElement.id === "from" && document.querySelector("#to").value === "svc/shop/web"`)
	b.axe("form")
	b.keys("pod/shop/cart\r")
	b.is(`document.querySelector(".verdict")?.innerText.includes("delivered") && document.querySelectorAll(".steps li").length > 2`)
	b.is(`location.hash.includes("from=pod") && !document.querySelector("#prove").disabled`)
	b.shot("path-predicted")
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.querySelector("#prove").click(); true`)); err != nil {
		t.Fatal(err)
	}
	b.is(`document.querySelectorAll(".log li").length === 3`)
	b.is(`document.querySelector(".verdict").innerText.includes("dropped, predicted: delivered")`)
	b.axe("path")
	b.shot("path-light")
	b.colors("dark")
	b.axe("path, dark")
	b.shot("path-dark")
	b.do(chromedp.EmulateViewport(390, 844))
	b.is(`document.documentElement.scrollWidth <= 390`)
	b.axe("path, phone")
	b.shot("path-phone")
}
