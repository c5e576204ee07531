package page

import (
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestReal looks at the page of a real cluster, whose URL is in FAIRWAY_PAGE_URL. It has pod/shop/cart and a Service shop/web
// of type LoadBalancer.
func TestReal(t *testing.T) {
	url := os.Getenv("FAIRWAY_PAGE_URL")
	if url == "" {
		t.Skip("no FAIRWAY_PAGE_URL")
	}
	b := start(t)
	b.do(chromedp.Navigate(url))
	b.is(`document.querySelectorAll(".row").length > 4 && document.querySelector("#live").innerText === "live"`)
	b.is(`[...document.querySelectorAll(".c-announcers")].some(e => e.innerText.includes("node-"))`)
	b.shot("real-list")
	b.goTo("#/service/shop/web")
	b.is(`document.querySelector("#service-body table")`)
	b.do(chromedp.EmulateViewport(1280, 1300))
	b.shot("real-service")
	b.goTo("#/map")
	b.is(`document.querySelector("#map svg path") && document.querySelector("#map table").innerText.includes("shop/web")`)
	b.shot("real-map")
	b.goTo("#/path?from=pod/shop/cart&to=svc/shop/web")
	b.is(`document.querySelector("#from").value === "pod/shop/cart"`)
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.querySelector("#prove").click(); true`)); err != nil {
		t.Fatal(err)
	}
	b.is(`document.querySelector(".log")`)
	b.is(`!document.querySelector("#prove").disabled`)
	b.shot("real-path")
	b.axe("real path")
}
