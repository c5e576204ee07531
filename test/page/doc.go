// Package page looks at the web page of `fairway page` in headless Chromium: `make test-page`.
//
//	Chromium (chromedp) ── 127.0.0.1 ──→ page.Page with 5,000 Services ──→ screenshots in bin/page
//
// Both are in a network namespace without an uplink, because browsers call home. The target unpacks Chromium and axe-core
// into bin; without them the tests are skipped.
package page
