// Before anything is painted: the theme that was chosen here, if one was.
"use strict";
try {
  const chosen = localStorage.getItem("duly-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing follows the system.
}
